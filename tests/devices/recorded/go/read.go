package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	api "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// Board is a GPU with what NVML and sysfs say of it.
type Board struct {
	Minor      int
	UUID       string
	Memory     uint64
	Attributes map[api.QualifiedName]api.DeviceAttribute
	Places     []Place
}

// Place is a MIG instance that a board can be split into, at one of its starts.
type Place struct {
	Name        string
	Profile     string
	Start, Size int
	Capacity    map[api.QualifiedName]int64
}

var upper = regexp.MustCompile("([a-z0-9])([A-Z])")
var notDNS = regexp.MustCompile("[^a-z0-9-.]")

// read asks NVML, or NVIDIA's mock of a DGX A100, for all boards. It only asks: no setting is changed.
func read(mock bool, library string) ([]Board, error) {
	lib := nvml.New(nvml.WithLibraryPath(library))
	var options []device.Option
	if mock {
		lib = mockOf(dgxa100.New())
		options = append(options, device.WithVerifySymbols(false))
	}
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("initialize NVML: %v", ret)
	}
	defer lib.Shutdown()
	driver, _ := lib.SystemGetDriverVersion()
	cuda, _ := lib.SystemGetCudaDriverVersion()
	var boards []Board
	err := device.New(lib, options...).VisitDevices(func(_ int, found device.Device) error {
		board, err := readBoard(found, driver, cuda)
		boards = append(boards, board)
		return err
	})
	return boards, err
}

// mockOf adds to the mock what it lacks.
func mockOf(server *dgxa100.Server) nvml.Interface {
	for _, each := range server.Devices {
		each.(*dgxa100.Device).GetAddressingModeFunc = func() (nvml.DeviceAddressingMode, nvml.Return) {
			return nvml.DeviceAddressingMode{}, nvml.ERROR_NOT_SUPPORTED
		}
	}
	return server
}

func readBoard(found device.Device, driver string, cuda int) (Board, error) {
	minor, ret := found.GetMinorNumber()
	uuid, ret2 := found.GetUUID()
	memory, ret3 := found.GetMemoryInfo()
	product, ret4 := found.GetName()
	for _, each := range []nvml.Return{ret, ret2, ret3, ret4} {
		if each != nvml.SUCCESS {
			return Board{}, fmt.Errorf("read a GPU: %v", each)
		}
	}
	architecture, err := found.GetArchitectureAsString()
	brand, err2 := found.GetBrandAsString()
	capability, err3 := found.GetCudaComputeCapabilityAsString()
	bus, err4 := found.GetPCIBusID()
	addressing, err5 := found.GetAddressingModeAsString()
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return Board{}, err
	}
	attributes := map[api.QualifiedName]api.DeviceAttribute{
		"uuid": text(uuid), "productName": text(product), "brand": text(brand), "architecture": text(architecture),
		"cudaComputeCapability": version(capability), "driverVersion": version(driver),
		"cudaDriverVersion": version(fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)),
	}
	if addressing != "" {
		attributes["addressingMode"] = text(addressing)
	}
	busAttribute, err := deviceattribute.GetPCIBusIDAttribute(bus)
	root, err2 := deviceattribute.GetPCIeRootAttributeByPCIBusID(bus)
	numa, err3 := deviceattribute.GetNUMANodeAttributeByPCIBusID(bus, deviceattribute.ScalarAttribute)
	for _, each := range []struct {
		deviceattribute.DeviceAttribute
		err error
	}{{busAttribute, err}, {root, err2}, {numa, err3}} {
		if each.err != nil {
			fmt.Fprintln(os.Stderr, "left out:", each.err)
			continue
		}
		attributes[each.Name] = each.Value
	}
	board := Board{Minor: minor, UUID: uuid, Memory: memory.Total, Attributes: attributes}
	board.Places, err = places(found, minor)
	return board, err
}

// places lists the instances whose compute instance takes all of the GPU instance, in order of their names.
func places(found device.Device, minor int) ([]Place, error) {
	byName := map[string]Place{}
	err := found.VisitMigProfiles(func(profile device.MigProfile) error {
		about := profile.GetInfo()
		if about.C != about.G || about.CIProfileID == nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 {
			return nil
		}
		info, ret := found.GetGpuInstanceProfileInfo(about.GIProfileID)
		if ret != nvml.SUCCESS {
			return nil
		}
		possible, ret := found.GetGpuInstancePossiblePlacements(&info)
		if ret != nvml.SUCCESS {
			fmt.Fprintf(os.Stderr, "no placements of %v: %v\n", profile, ret)
			return nil
		}
		for _, one := range possible {
			short := strings.ToLower(strings.ReplaceAll(profile.String(), ".", ""))
			name := fmt.Sprintf("gpu-%d-mig-%s-%d-%d", minor, notDNS.ReplaceAllString(short, "-"), info.Id, one.Start)
			if seen, ok := byName[name]; ok && seen.Profile != profile.String() {
				return fmt.Errorf("%s is the name of %s and of %s", name, seen.Profile, profile)
			}
			byName[name] = Place{name, profile.String(), int(one.Start), int(one.Size), map[api.QualifiedName]int64{
				"multiprocessors": int64(info.MultiprocessorCount), "copyEngines": int64(info.CopyEngineCount),
				"decoders": int64(info.DecoderCount), "encoders": int64(info.EncoderCount),
				"jpegEngines": int64(info.JpegCount), "ofaEngines": int64(info.OfaCount),
				"memory": int64(info.MemorySizeMB) << 20,
			}}
		}
		return nil
	})
	return slices.SortedFunc(maps.Values(byName), func(a, b Place) int { return cmp.Compare(a.Name, b.Name) }), err
}

// Slice is what a driver leaves to Kubernetes' library to publish.
type Slice struct {
	SharedCounters []api.CounterSet `json:"sharedCounters,omitempty"`
	Devices        []api.Device     `json:"devices,omitempty"`
}

// whole gives the boards as one slice, as without feature gates.
func whole(boards []Board) []Slice {
	var devices []api.Device
	for _, board := range boards {
		devices = append(devices, api.Device{
			Name:       board.name(),
			Attributes: board.as("gpu", nil),
			Capacity:   quantities(map[api.QualifiedName]int64{"memory": int64(board.Memory)}),
		})
	}
	return []Slice{{Devices: devices}}
}

// dynamicMIG gives the counters of all boards, then one slice for each board with all its places.
func dynamicMIG(boards []Board) []Slice {
	content := []Slice{{}}
	for _, board := range boards {
		largest, memorySlices := map[api.QualifiedName]int64{}, 0
		for _, place := range board.Places {
			memorySlices = max(memorySlices, place.Size)
			for name, amount := range place.Capacity {
				largest[name] = max(largest[name], amount)
			}
		}
		set := board.name() + "-counter-set"
		all := counters(largest, 0, memorySlices)
		content[0].SharedCounters = append(content[0].SharedCounters, api.CounterSet{Name: set, Counters: all})
		devices := []api.Device{{
			Name:             board.name(),
			Attributes:       board.as("gpu", nil),
			Capacity:         quantities(largest),
			ConsumesCounters: []api.DeviceCounterConsumption{{CounterSet: set, Counters: all}},
		}}
		for _, place := range board.Places {
			own := map[api.QualifiedName]api.DeviceAttribute{
				"profile": text(place.Profile), "parentUUID": text(board.UUID),
			}
			taken := counters(place.Capacity, place.Start, place.Size)
			devices = append(devices, api.Device{
				Name:             place.Name,
				Attributes:       board.as("mig", own),
				Capacity:         quantities(place.Capacity),
				ConsumesCounters: []api.DeviceCounterConsumption{{CounterSet: set, Counters: taken}},
			})
		}
		content = append(content, Slice{Devices: devices})
	}
	return content
}

func (board Board) name() string { return fmt.Sprintf("gpu-%d", board.Minor) }

func (board Board) as(kind string, own map[api.QualifiedName]api.DeviceAttribute) map[api.QualifiedName]api.DeviceAttribute {
	attributes := maps.Clone(board.Attributes)
	attributes["type"] = text(kind)
	if kind == "mig" { // an instance that does not exist yet has no UUID
		delete(attributes, "uuid")
	}
	maps.Copy(attributes, own)
	return attributes
}

func quantities(amounts map[api.QualifiedName]int64) map[api.QualifiedName]api.DeviceCapacity {
	capacity := map[api.QualifiedName]api.DeviceCapacity{}
	for name, amount := range amounts {
		capacity[name] = api.DeviceCapacity{Value: *resource.NewQuantity(amount, resource.BinarySI)}
	}
	return capacity
}

func counters(amounts map[api.QualifiedName]int64, start, size int) map[string]api.Counter {
	found := map[string]api.Counter{}
	for name, amount := range amounts {
		hyphens := strings.ToLower(upper.ReplaceAllString(string(name), "$1-$2"))
		found[hyphens] = api.Counter{Value: *resource.NewQuantity(amount, resource.BinarySI)}
	}
	for slot := start; slot < start+size; slot++ {
		found[fmt.Sprintf("memory-slice-%d", slot)] = api.Counter{Value: *resource.NewQuantity(1, resource.BinarySI)}
	}
	return found
}

func text(value string) api.DeviceAttribute { return api.DeviceAttribute{StringValue: &value} }

// version fills what is missing for a semantic version: 9.0 is 9.0.0, and 580.95.05 is 580.95.5.
func version(value string) api.DeviceAttribute {
	parts := append(strings.Split(value, "."), "0", "0")[:3]
	for i, part := range parts {
		if parts[i] = strings.TrimLeft(part, "0"); parts[i] == "" {
			parts[i] = "0"
		}
	}
	joined := strings.Join(parts, ".")
	return api.DeviceAttribute{VersionValue: &joined}
}
