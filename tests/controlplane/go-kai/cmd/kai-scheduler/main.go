// Command kai-scheduler is the stock scheduler of KAI-Scheduler, with all its flags.
package main

import (
	"fmt"
	"os"

	"github.com/NVIDIA/KAI-scheduler/cmd/scheduler/app"
)

func main() {
	if err := app.RunApp(); err != nil {
		fmt.Fprintln(os.Stderr, "kai-scheduler:", err)
		os.Exit(1)
	}
}
