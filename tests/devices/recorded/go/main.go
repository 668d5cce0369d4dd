// Reads the GPUs of this machine and gives them in the form of NVIDIA's DRA driver; ../README.md says how and why.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

func main() {
	mock := flag.Bool("mock", false, "read NVIDIA's mock of a DGX A100")
	library := flag.String("library", "libnvidia-ml.so.1", "NVML")
	flag.Parse()
	boards, err := read(*mock, *library)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(map[string][]Slice{"whole": whole(boards), "dynamicMIG": dynamicMIG(boards)}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
