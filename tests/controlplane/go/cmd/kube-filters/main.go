// Command kube-filters asks kube-scheduler's own filter plugins which nodes a pod may run on.
//
// It reads snapshots of a cluster from stdin, one JSON object per line, and writes one answer per line:
//
//	{"nodes":[],"pods":[],"pending":[],"namespaces":[],"pvs":[],"pvcs":[],"storageClasses":[],"csiNodes":[],
//	 "csiDrivers":[],"csiStorageCapacities":[],"volumeAttachments":[]}
//	{"feasible":{"namespace/name":["node"]},"reasons":{"namespace/name":{"node":"Plugin: message"}}}
//
// Every pod of "pending" is tried alone. Plugins, their order, their arguments and the feature gates are the defaults
// of the release; DynamicResources (claims are not part of a snapshot) and what does not filter are left out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// snapshot is one line of input. Pods stay raw: one that cannot be read must not spoil the others.
type snapshot struct {
	Nodes                []*v1.Node
	Pods, Pending        []json.RawMessage
	Namespaces           []*v1.Namespace
	PVs                  []*v1.PersistentVolume
	PVCs                 []*v1.PersistentVolumeClaim
	StorageClasses       []*storagev1.StorageClass
	CSINodes             []*storagev1.CSINode
	CSIDrivers           []*storagev1.CSIDriver
	CSIStorageCapacities []*storagev1.CSIStorageCapacity
	VolumeAttachments    []*storagev1.VolumeAttachment
}

// answer is one line of output.
type answer struct {
	Feasible map[string][]string          `json:"feasible"`
	Reasons  map[string]map[string]string `json:"reasons"`
	Error    string                       `json:"error,omitempty"`
}

// shared is what the plugins hold on to while snapshots come and go: they get it once, when they are made.
type shared struct {
	*internalcache.Snapshot
	fwk.PodNominator
	nominated map[string][]fwk.PodInfo
}

func (s *shared) NominatedPodsForNode(n string) []fwk.PodInfo { return s.nominated[n] }

type filters struct {
	framework.Framework
	shared    *shared
	informers informers.SharedInformerFactory
}

func main() {
	klog.SetLogger(klog.Logger{}) // that is none
	metrics.Register()            // the framework counts, and panics if it cannot
	filters, err := newFilters(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube-filters:", err)
		os.Exit(1)
	}
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for {
		line, end := in.ReadBytes('\n')
		if len(strings.TrimSpace(string(line))) > 0 {
			if err := encoder.Encode(filters.answer(line)); err != nil {
				os.Exit(1)
			}
		}
		if err := out.Flush(); end != nil || err != nil {
			return
		}
	}
}

// newFilters builds the default profile, but for what does not filter.
func newFilters(ctx context.Context) (*filters, error) {
	var defaults configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&defaults)
	var configuration config.KubeSchedulerConfiguration
	if err := scheme.Scheme.Convert(&defaults, &configuration, nil); err != nil {
		return nil, err
	}
	profile := &configuration.Profiles[0]
	left := sets.New(names.DynamicResources, names.DefaultPreemption, names.GangScheduling, names.ImageLocality,
		names.NodeResourcesBalancedAllocation)
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled,
		func(p config.Plugin) bool { return left.Has(p.Name) })

	client := fake.NewSimpleClientset()
	f := &filters{shared: &shared{}, informers: informers.NewSharedInformerFactory(client, 0)}
	built, err := frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(f.informers),
		frameworkruntime.WithSnapshotSharedLister(f.shared),
		frameworkruntime.WithPodNominator(f.shared),
		frameworkruntime.WithSharedCSIManager(
			nodevolumelimits.NewCSIManager(f.informers.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithParallelism(1),
	)
	f.Framework = built
	return f, err
}

// answer tries every pending pod of one snapshot.
func (f *filters) answer(line []byte) (a answer) {
	a = answer{Feasible: map[string][]string{}, Reasons: map[string]map[string]string{}}
	defer func() {
		if failed := recover(); failed != nil { // a plugin cannot cope with one of the objects
			a.Error = fmt.Sprint(failed)
		}
	}()
	var s snapshot
	if err := json.Unmarshal(line, &s); err != nil {
		a.Error = err.Error()
		return a
	}
	existing, broken := decodePods(s.Pods)
	pending, brokenPending := decodePods(s.Pending)
	err := f.load(&s, existing, pending)
	for name, why := range broken {
		err = errors.Join(err, fmt.Errorf("pod %s: %w", name, why))
	}
	if err != nil {
		a.Error = err.Error()
		return a
	}
	everywhere := func(name, reason string) {
		a.Feasible[name], a.Reasons[name] = []string{}, map[string]string{}
		for _, node := range s.Nodes {
			a.Reasons[name][node.Name] = reason
		}
	}
	for name, err := range brokenPending {
		everywhere(name, err.Error())
	}
	for _, pod := range pending {
		name := pod.Namespace + "/" + pod.Name
		everywhere(name, "NodeAffinity: node(s) didn't satisfy plugin(s) [NodeAffinity]")
		if err := f.try(pod, a.Reasons[name]); err != "" {
			everywhere(name, err)
			continue
		}
		for _, node := range s.Nodes {
			if _, rejected := a.Reasons[name][node.Name]; !rejected {
				a.Feasible[name] = append(a.Feasible[name], node.Name)
			}
		}
		slices.Sort(a.Feasible[name])
	}
	return a
}

// try runs the filters for one pod as kube-scheduler's findNodesThatFitPod does. From reasons it takes the nodes that
// pass, and overwrites those of nodes that do not; nodes a plugin left out beforehand keep theirs. What it returns is
// a reason against all nodes: a rejection before any node was looked at, or an error, which ends kube-scheduler's
// attempt even if it came up at one node only.
func (f *filters) try(pod *v1.Pod, reasons map[string]string) string {
	ctx := context.Background()
	state := framework.NewCycleState()
	only, status, _ := f.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		return reason(status)
	}
	nodes, _ := f.shared.NodeInfos().List()
	for _, info := range nodes {
		name := info.Node().Name
		if !only.AllNodes() && !only.NodeNames.Has(name) {
			continue
		}
		delete(reasons, name)
		if status := f.RunFilterPluginsWithNominatedPods(ctx, state, pod, info); !status.IsSuccess() {
			if !status.IsRejected() {
				return reason(status)
			}
			reasons[name] = reason(status)
		}
	}
	return ""
}

func reason(status *fwk.Status) string {
	return status.Plugin() + ": " + status.Message()
}

// load puts a snapshot in place of the one before. The listers of the plugins read the informers' stores, and those
// are filled here: nothing is listed, watched or waited for.
func (f *filters) load(s *snapshot, existing, pending []*v1.Pod) error {
	known := sets.New[string]()
	for _, node := range s.Nodes {
		known.Insert(node.Name)
	}
	var bound []*v1.Pod
	f.shared.nominated = map[string][]fwk.PodInfo{}
	seen := sets.New[types.UID]()
	for _, pod := range append(existing, pending...) {
		if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed || seen.Has(pod.UID) {
			continue // kube-scheduler does not watch these; a pod that is in both lists counts once
		}
		seen.Insert(pod.UID)
		if pod.Spec.NodeName == "" {
			if on := pod.Status.NominatedNodeName; on != "" {
				info, _ := framework.NewPodInfo(pod) // as in the queue: terms that cannot be parsed do not count
				f.shared.nominated[on] = append(f.shared.nominated[on], info)
			}
		} else if known.Has(pod.Spec.NodeName) && slices.Contains(existing, pod) {
			bound = append(bound, pod) // the others are in kube-scheduler's cache, but on no node of its snapshots
		}
	}
	f.shared.Snapshot = internalcache.NewSnapshot(bound, s.Nodes)

	core, storage := f.informers.Core().V1(), f.informers.Storage().V1()
	return errors.Join(
		replace(core.Nodes().Informer(), s.Nodes),
		replace(core.Namespaces().Informer(), s.Namespaces),
		replace(core.PersistentVolumes().Informer(), s.PVs),
		replace(core.PersistentVolumeClaims().Informer(), s.PVCs),
		replace(storage.StorageClasses().Informer(), s.StorageClasses),
		replace(storage.CSINodes().Informer(), s.CSINodes),
		replace(storage.CSIDrivers().Informer(), s.CSIDrivers),
		replace(storage.CSIStorageCapacities().Informer(), s.CSIStorageCapacities),
		replace(storage.VolumeAttachments().Informer(), s.VolumeAttachments),
	)
}

func replace[T metav1.Object](informer cache.SharedIndexInformer, objects []T) error {
	items := make([]any, len(objects))
	for i, object := range objects {
		items[i] = object
	}
	return informer.GetIndexer().Replace(items, "")
}

// decodePods returns the pods that can be read, and by name what is wrong with the others. Pods need a UID to be told
// apart: those without one get their name.
func decodePods(raw []json.RawMessage) ([]*v1.Pod, map[string]error) {
	var pods []*v1.Pod
	errs := map[string]error{}
	for _, object := range raw {
		pod := &v1.Pod{}
		if err := json.Unmarshal(object, pod); err != nil {
			var named metav1.PartialObjectMetadata
			_ = json.Unmarshal(object, &named)
			errs[named.Namespace+"/"+named.Name] = err
			continue
		}
		if pod.UID == "" {
			pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
		}
		pods = append(pods, pod)
	}
	return pods, errs
}
