// Command kube-allocator asks kube-scheduler's own device allocator what it would allocate to claims on a node.
//
// It reads cases from stdin, one JSON object per line, and writes one answer per line:
//
//	{"node":{},"slices":[],"classes":[],"claims":[],"allocated":[]}
//	{"allocations":[]} or {"infeasible":true,"reason":""} or {"error":"","timeout":false}
//
// "claims" are to be allocated together, as those of one pod; "allocated" are claims with status.allocation, whose
// devices are in use. There is one allocation for each claim, in the order of the claims. An error ends kube-scheduler's
// attempt for the pod on every node; "infeasible" concerns the node alone. The features are those that are stable or on
// by default in the release.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// allocationTimeout is that of kube-scheduler's filter for one node.
const allocationTimeout = 10 * time.Second

const cachedExpressions = 1000

// features are those of dynamicresources.AllocatorFeatures under the default feature gates.
var features = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

// allocationCase is one line of input.
type allocationCase struct {
	Node      *v1.Node
	Slices    []*resourceapi.ResourceSlice
	Classes   []*resourceapi.DeviceClass
	Claims    []*resourceapi.ResourceClaim
	Allocated []*resourceapi.ResourceClaim
}

// answer is one line of output.
type answer struct {
	Allocations *[]resourceapi.AllocationResult `json:"allocations,omitempty"` // not left out when empty
	Infeasible  bool                            `json:"infeasible,omitempty"`
	Reason      string                          `json:"reason,omitempty"`
	Error       string                          `json:"error,omitempty"`
	Timeout     bool                            `json:"timeout,omitempty"`
}

// classes is a lister of the device classes of a case.
type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclasses"), name)
}

func main() {
	klog.SetLogger(klog.Logger{}) // that is none
	expressions := cel.NewCache(cachedExpressions, cel.Features{EnableConsumableCapacity: true})
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for {
		line, end := in.ReadBytes('\n')
		if len(strings.TrimSpace(string(line))) > 0 {
			if err := encoder.Encode(allocate(line, expressions)); err != nil {
				fmt.Fprintln(os.Stderr, "kube-allocator:", err)
				os.Exit(1)
			}
		}
		if err := out.Flush(); end != nil || err != nil {
			return
		}
	}
}

// allocate answers one case.
func allocate(line []byte, expressions *cel.Cache) (a answer) {
	defer func() {
		if failed := recover(); failed != nil { // the allocator cannot cope with one of the objects
			a = answer{Error: fmt.Sprintf("panic: %v", failed)}
		}
	}()
	var c allocationCase
	if err := json.Unmarshal(line, &c); err != nil {
		return answer{Error: err.Error()}
	}
	if c.Node == nil {
		return answer{Error: "the case has no node"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), allocationTimeout)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, features, gather(c.Allocated), classes(c.Classes), c.Slices, expressions)
	if err != nil {
		return answer{Error: err.Error()}
	}
	allocations, err := allocator.Allocate(ctx, c.Node, c.Claims)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return answer{Error: err.Error(), Timeout: true}
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return answer{Infeasible: true, Reason: err.Error()}
	case err != nil:
		return answer{Error: err.Error()}
	case len(allocations) != len(c.Claims):
		return answer{Infeasible: true}
	}
	return answer{Allocations: &allocations}
}

// gather collects what allocated claims use, as foreachAllocatedDevice and GatherAllocatedState of the dynamicresources
// plugin do: devices for administrative access are not in use, those with a share ID are shared, others are taken whole.
func gather(allocated []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range allocated {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if ptr.Deref(result.AdminAccess, false) {
				continue
			}
			device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(device)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
			}
		}
	}
	return state
}
