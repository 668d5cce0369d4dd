// Command kube-cel asks kube-scheduler's own CEL environment whether devices match selectors.
//
// It reads questions from stdin, one JSON object per line, and writes one answer per line:
//
//	{"expression":"device.driver == \"a\"","devices":[{"driver":"a","attributes":{},"capacity":{}}]}
//	{"type":"bool","outcomes":[{"match":true,"cost":2}]}
//
// A device has the fields of dynamic-resource-allocation's cel.Device. "error" says why an expression does not compile,
// and an outcome's "error" why a device cannot be judged. The line {"declarations":true} asks for every function of the
// environment instead. Feature gates are the defaults of the release.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression   string
	Devices      []device
	Declarations bool
}

type device struct {
	Driver                   string
	AllowMultipleAllocations *bool
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
}

type answer struct {
	Type         string    `json:"type,omitempty"`
	Error        string    `json:"error,omitempty"`
	Outcomes     []outcome `json:"outcomes,omitempty"`
	Declarations []string  `json:"declarations,omitempty"`
}

type outcome struct {
	Match bool   `json:"match"`
	Error string `json:"error,omitempty"`
	Cost  uint64 `json:"cost"`
}

var features = cel.Features{EnableConsumableCapacity: true}

func main() {
	in, out := bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for {
		line, end := in.ReadBytes('\n')
		if len(strings.TrimSpace(string(line))) > 0 {
			if err := encoder.Encode(reply(line)); err != nil {
				os.Exit(1)
			}
		}
		if err := out.Flush(); end != nil || err != nil {
			return
		}
	}
}

func reply(line []byte) (a answer) {
	defer func() {
		if failed := recover(); failed != nil {
			a = answer{Error: fmt.Sprint("panic: ", failed)}
		}
	}()
	var q question
	if err := json.Unmarshal(line, &q); err != nil {
		return answer{Error: "question: " + err.Error()}
	}
	if q.Declarations {
		return answer{Declarations: declarations()}
	}
	result := cel.GetCompiler(features).CompileCELExpression(q.Expression, cel.Options{DisableCostEstimation: true})
	if result.Error != nil {
		return answer{Error: result.Error.Error()}
	}
	a.Type = result.OutputType.String()
	for _, d := range q.Devices {
		a.Outcomes = append(a.Outcomes, match(result, d))
	}
	return a
}

func match(result cel.CompilationResult, d device) (o outcome) {
	defer func() {
		if failed := recover(); failed != nil {
			o = outcome{Error: fmt.Sprint("panic: ", failed)}
		}
	}()
	match, details, err := result.DeviceMatches(context.Background(), cel.Device{
		Driver: d.Driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if cost := details.ActualCost(); cost != nil {
		o.Cost = *cost
	}
	if err != nil {
		o.Error = err.Error()
	}
	o.Match = match
	return o
}

// declarations lists every overload of the environment: "name | overload | member or function | arguments -> result".
func declarations() (all []string) {
	environment := cel.GetCompiler(features).CompileCELExpression("true", cel.Options{}).Environment
	functions := environment.Functions()
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		for _, overload := range functions[name].OverloadDecls() {
			kind, arguments := "function", make([]string, 0, len(overload.ArgTypes()))
			if overload.IsMemberFunction() {
				kind = "member"
			}
			for _, argument := range overload.ArgTypes() {
				arguments = append(arguments, argument.String())
			}
			all = append(all, fmt.Sprintf("%s | %s | %s | %s -> %s",
				name, overload.ID(), kind, strings.Join(arguments, ", "), overload.ResultType()))
		}
	}
	return all
}
