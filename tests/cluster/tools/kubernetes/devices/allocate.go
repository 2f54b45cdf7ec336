package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Longer than that no search is waited for. Kubernetes' scheduler gives up after ten seconds.
const patience = time.Second

// cluster is what a line says: objects, the claims of a pod by name, and what Aliquot would give
// them on each node where it would let the pod in.
type cluster struct {
	Nodes   []*v1.Node                     `json:"nodes"`
	Slices  []*resourceapi.ResourceSlice   `json:"slices"`
	Classes []*resourceapi.DeviceClass     `json:"classes"`
	Claims  []*resourceapi.ResourceClaim   `json:"claims"`
	Wanted  []string                       `json:"wanted"`
	Ours    map[string]map[string][]result `json:"ours"`
}

// said is what is said of one node.
type said struct {
	// The claims can have devices there.
	Can bool `json:"can"`
	// Why the search was broken off.
	Error string `json:"error,omitempty"`
	// It took longer than anybody waits.
	GaveUp bool `json:"gaveUp,omitempty"`
	// What Kubernetes' own answer breaks of what the claims say.
	Breaks string `json:"breaks,omitempty"`
	// What Aliquot's answer breaks.
	OursBreaks string `json:"oursBreaks,omitempty"`
	// Kubernetes finds no devices, and its rules allow those that Aliquot's answer has.
	OursAllowed bool `json:"oursAllowed,omitempty"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	all := make([]*resourceapi.DeviceClass, 0, len(c))
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("device class %s does not exist", name)
}

func (j judge) allocate(asks cluster) (map[string]said, error) {
	byName := classes{}
	for _, class := range asks.Classes {
		byName[class.Name] = class
	}
	state := allocated(asks.Claims)
	var waiting, have []*resourceapi.ResourceClaim
	for _, name := range asks.Wanted {
		for _, claim := range asks.Claims {
			switch {
			case claim.Name != name:
			case claim.Status.Allocation == nil:
				waiting = append(waiting, claim)
			default:
				have = append(have, claim)
			}
		}
	}
	checks := newChecks(j, asks, byName, state)
	answers := map[string]said{}
	for _, node := range asks.Nodes {
		answer, err := j.onNode(asks, byName, state, waiting, have, node, checks)
		if err != nil {
			return nil, err
		}
		if ours, ok := asks.Ours[node.Name]; ok {
			answer.OursBreaks = checks.of(node, waiting, ours)
			if !answer.Can {
				answer.OursAllowed, err = j.pinned(asks, byName, state, waiting, node, ours)
			}
			if err != nil {
				return nil, err
			}
		}
		answers[node.Name] = answer
	}
	return answers, nil
}

func (j judge) onNode(asks cluster, byName classes, state structured.AllocatedState, waiting, have []*resourceapi.ResourceClaim, node *v1.Node, checks *checks) (said, error) {
	for _, claim := range have {
		if claim.Status.Allocation.NodeSelector == nil {
			continue
		}
		selector, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
		if err != nil {
			return said{}, err
		}
		if !selector.Match(node) {
			return said{}, nil
		}
	}
	if len(waiting) == 0 {
		return said{Can: true}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// One for each node: what an allocator remembers of a pool is by the pool's name alone.
	allocator, err := structured.NewAllocator(ctx, j.features, state, byName, asks.Slices, j.cel)
	if err != nil {
		return said{}, err
	}
	found, err := allocator.Allocate(ctx, node, waiting)
	switch {
	case ctx.Err() != nil:
		return said{GaveUp: true}, nil
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return said{}, nil
	case err != nil:
		return said{Error: err.Error()}, nil
	case found == nil:
		return said{}, nil
	}
	results := map[string][]result{}
	for at, claim := range waiting {
		results[claim.Name] = found[at].Devices.Results
	}
	return said{Can: true, Breaks: checks.of(node, waiting, results)}, nil
}

// allocated is what the claims have: what kube-scheduler's claim tracker would say.
func allocated(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, one := range claim.Status.Allocation.Devices.Results {
			if one.AdminAccess != nil && *one.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(one.Driver, one.Pool, one.Device)
			if one.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, one.ShareID))
			if one.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, one.ConsumedCapacity))
			}
		}
	}
	return state
}
