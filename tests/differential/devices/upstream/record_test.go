// Package recording runs Kubernetes' table of allocator tests, and writes each of its cases as a line of JSON.
//
// It is compiled inside a copy of k8s.io/dynamic-resource-allocation, whose internal packages hold the table: see
// __main__.py beside this file. The table compares what was allocated with what it expects, so what is recorded of a
// test that passes is what the table expects.
package recording

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured/internal"
	"k8s.io/dynamic-resource-allocation/structured/internal/allocatortesting"
	"k8s.io/dynamic-resource-allocation/structured/internal/experimental"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

type device struct {
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	ShareID string `json:"shareID,omitempty"`
}

type consumedCapacity struct {
	device
	Capacity internal.ConsumedCapacity `json:"capacity"`
}

type recorded struct {
	Name      string                         `json:"name"`
	Features  []string                       `json:"features"`
	Node      *v1.Node                       `json:"node"`
	Slices    []*resourceapi.ResourceSlice   `json:"slices"`
	Classes   []*resourceapi.DeviceClass     `json:"classes"`
	Claims    []*resourceapi.ResourceClaim   `json:"claims"`
	Devices   []device                       `json:"devices"`
	Shares    []device                       `json:"shares"`
	Consumed  []consumedCapacity             `json:"consumed"`
	Results   []resourceapi.AllocationResult `json:"results"`
	Error     string                         `json:"error,omitempty"`
	OnNode    bool                           `json:"onNode,omitempty"` // the error concerns the node alone
	Completed bool                           `json:"completed"`
}

// recorder is the allocator of one test.
type recorder struct {
	*experimental.Allocator
	recorded recorded
}

func (r *recorder) Allocate(ctx context.Context, node *v1.Node, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	r.recorded.Node, r.recorded.Claims = node, claims
	results, err := r.Allocator.Allocate(ctx, node, claims)
	r.recorded.Results = results
	r.recorded.Completed = err == nil && len(results) == len(claims)
	if err != nil {
		r.recorded.Error = err.Error()
		r.recorded.OnNode = errors.Is(err, internal.ErrFailedAllocationOnNode)
	}
	content, marshalError := json.Marshal(r.recorded)
	if marshalError != nil {
		return nil, marshalError
	}
	path := filepath.Join(os.Getenv("RECORD_FOLDER"), strings.ReplaceAll(r.recorded.Name, "/", "__")+".json")
	if writeError := os.WriteFile(path, content, 0o644); writeError != nil {
		return nil, writeError
	}
	return results, err
}

func TestRecord(t *testing.T) {
	newRecorder := func(ctx context.Context, features internal.Features, state internal.AllocatedState,
		classes internal.DeviceClassLister, slices []*resourceapi.ResourceSlice, expressions *cel.Cache,
	) (internal.Allocator, error) {
		allocator, err := experimental.NewAllocator(ctx, features, state, classes, slices, expressions)
		if err != nil {
			return nil, err
		}
		list, err := classes.List()
		if err != nil {
			return nil, err
		}
		underlying := klog.FromContext(ctx).GetSink().(ktesting.Underlier).GetUnderlying()
		r := &recorder{Allocator: allocator, recorded: recorded{
			Name:     underlying.(interface{ Name() string }).Name(),
			Features: sets.List(features.Set()),
			Slices:   slices,
			Classes:  list,
		}}
		for id := range state.AllocatedDevices {
			r.recorded.Devices = append(r.recorded.Devices, named(id, ""))
		}
		for id := range state.AllocatedSharedDeviceIDs {
			r.recorded.Shares = append(r.recorded.Shares, named(id.GetDeviceID(), id.ShareID.String()))
		}
		for id, capacity := range state.AggregatedCapacity {
			r.recorded.Consumed = append(r.recorded.Consumed, consumedCapacity{named(id, ""), capacity})
		}
		return r, nil
	}
	allocatortesting.TestAllocator(t, internal.FeaturesAll, newRecorder)
	allocatortesting.TestLexicographicalAllocator(t, internal.FeaturesAll, newRecorder)
}

func named(id internal.DeviceID, share string) device {
	return device{id.Driver.String(), id.Pool.String(), id.Device.String(), share}
}
