// filters answers where kube-scheduler's own Filter plugins would let pods in, and what its
// InterPodAffinity plugin makes of each node.
//
// Comes in, a line each: a cluster as JSON, {"namespaces": [], "nodes": [], "csinodes": [],
// "volumes": [], "claims": [], "pods": [], "incoming": []}, of Kubernetes' objects. Goes out, a line each: for every incoming pod a map
// from node to the reasons why it will not do, empty where it will, and to its preference: the
// raw score, with the arguments that the KAI Scheduler gives to the plugin, of pods that are not
// being deleted. Nothing is scheduled: each incoming pod meets the same cluster.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	gates "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// What is asked about; a framework wants the first two to be complete.
var asked = []string{
	"PrioritySort", "DefaultBinder",
	"NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts",
	"NodeResourcesFit", "PodTopologySpread", "InterPodAffinity",
	"NodeVolumeLimits", "VolumeRestrictions",
}

type said struct {
	Reasons    []string `json:"reasons"`
	Preference int64    `json:"preference"`
}

type cluster struct {
	Namespaces []*v1.Namespace             `json:"namespaces"`
	Nodes      []*v1.Node                  `json:"nodes"`
	CSINodes   []*storagev1.CSINode        `json:"csinodes"`
	Volumes    []*v1.PersistentVolume      `json:"volumes"`
	Claims     []*v1.PersistentVolumeClaim `json:"claims"`
	Pods       []*v1.Pod                   `json:"pods"`
	Incoming   []*v1.Pod                   `json:"incoming"`
}

func main() {
	// Values that are no integers are said as errors; nobody reads them here.
	klog.SetLogger(logr.Discard())
	metrics.Register()
	// Off by default in 1.36; whoever switches it on expects it of every scheduler.
	if err := gates.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		"TaintTolerationComparisonOperators": true,
	}); err != nil {
		fail(err)
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	decoder := json.NewDecoder(lines)
	out := json.NewEncoder(os.Stdout)
	for decoder.More() {
		var asks cluster
		if err := decoder.Decode(&asks); err != nil {
			fail(err)
		}
		answers, err := answer(asks)
		if err != nil {
			fail(err)
		}
		if err := out.Encode(answers); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "filters:", err)
	os.Exit(1)
}

func add[Object any](to toolscache.SharedIndexInformer, objects []Object) error {
	for _, object := range objects {
		if err := to.GetIndexer().Add(object); err != nil {
			return err
		}
	}
	return nil
}

func answer(asks cluster) ([]map[string]said, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Never spoken to: what listers hold is put into them.
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		return nil, err
	}
	informerFactory := informers.NewSharedInformerFactory(client, 0)
	core, storage := informerFactory.Core().V1(), informerFactory.Storage().V1()
	if err := errors.Join(
		add(core.Namespaces().Informer(), asks.Namespaces),
		add(core.PersistentVolumes().Informer(), asks.Volumes),
		add(core.PersistentVolumeClaims().Informer(), asks.Claims),
		add(storage.CSINodes().Informer(), asks.CSINodes),
	); err != nil {
		return nil, err
	}
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	profile := defaults.Profiles[0]
	profile.Plugins = &config.Plugins{}
	for _, name := range asked {
		profile.Plugins.MultiPoint.Enabled = append(profile.Plugins.MultiPoint.Enabled, config.Plugin{Name: name})
	}
	wanted := profile.PluginConfig[:0]
	for _, one := range profile.PluginConfig {
		for _, name := range asked {
			if one.Name == name {
				wanted = append(wanted, one)
			}
		}
	}
	profile.PluginConfig = wanted
	snapshot := cache.NewSnapshot(asks.Pods, asks.Nodes)
	fw, err := runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), &profile,
		runtime.WithSnapshotSharedLister(snapshot),
		runtime.WithInformerFactory(informerFactory),
		runtime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(storage.CSINodes().Lister())),
		runtime.WithClientSet(client),
	)
	if err != nil {
		return nil, err
	}
	nodes, err := snapshot.NodeInfos().List()
	if err != nil {
		return nil, err
	}
	preferences, err := newPreferences(ctx, asks, informerFactory)
	if err != nil {
		return nil, err
	}
	answers := []map[string]said{}
	for _, pod := range asks.Incoming {
		state := framework.NewCycleState()
		answer := map[string]said{}
		preferred, err := preferences.of(ctx, pod)
		if err != nil {
			return nil, err
		}
		only, status, _ := fw.RunPreFilterPlugins(ctx, state, pod)
		for _, node := range nodes {
			name := node.Node().Name
			reasons := []string{}
			switch {
			case !status.IsSuccess():
				reasons = append(reasons, status.Reasons()...)
			case only != nil && !only.AllNodes() && !only.NodeNames.Has(name):
				reasons = append(reasons, "named no such node")
			default:
				if filtered := fw.RunFilterPlugins(ctx, state, pod, node); !filtered.IsSuccess() {
					reasons = append(reasons, filtered.Reasons()...)
				}
			}
			answer[name] = said{Reasons: reasons, Preference: preferred[name]}
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// preferences asks the InterPodAffinity plugin for raw scores.
type preferences struct {
	plugin *interpodaffinity.InterPodAffinity
	nodes  []fwk.NodeInfo
}

func newPreferences(ctx context.Context, asks cluster, informers informers.SharedInformerFactory) (*preferences, error) {
	// For us a pod that is being deleted prefers nothing any more.
	stays := slices.DeleteFunc(slices.Clone(asks.Pods), func(pod *v1.Pod) bool {
		return pod.DeletionTimestamp != nil
	})
	snapshot := cache.NewSnapshot(stays, asks.Nodes)
	handle, err := runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), nil,
		runtime.WithSnapshotSharedLister(snapshot),
		runtime.WithInformerFactory(informers),
	)
	if err != nil {
		return nil, err
	}
	plugin, err := interpodaffinity.New(ctx, &config.InterPodAffinityArgs{}, handle, feature.Features{})
	if err != nil {
		return nil, err
	}
	nodes, err := snapshot.NodeInfos().List()
	return &preferences{plugin.(*interpodaffinity.InterPodAffinity), nodes}, err
}

func (p *preferences) of(ctx context.Context, pod *v1.Pod) (map[string]int64, error) {
	scores, state := map[string]int64{}, framework.NewCycleState()
	status := p.plugin.PreScore(ctx, state, pod, p.nodes)
	if status.IsSkip() {
		return scores, nil
	}
	for _, node := range p.nodes {
		if !status.IsSuccess() {
			return nil, status.AsError()
		}
		scores[node.Node().Name], status = p.plugin.Score(ctx, state, pod, node)
	}
	return scores, status.AsError()
}
