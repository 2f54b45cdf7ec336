package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// The domain of attributes that mark the devices of a request.
const mark = "differential.aliquot.dev"

// pinned asks the allocator again where each request can have the devices of that answer alone,
// so that no search is needed: whether its rules allow the answer.
func (j judge) pinned(asks cluster, byName classes, state structured.AllocatedState, waiting []*resourceapi.ResourceClaim, node *v1.Node, given map[string][]result) (bool, error) {
	// By driver, pool and device: the requests that it is for.
	chosen := map[[3]string]sets.Set[string]{}
	var claims []*resourceapi.ResourceClaim
	for _, claim := range waiting {
		claim = claim.DeepCopy()
		for _, one := range given[claim.Name] {
			key := [3]string{one.Driver, one.Pool, one.Device}
			if chosen[key] == nil {
				chosen[key] = sets.New[string]()
			}
			chosen[key].Insert(claim.Name + "/" + one.Request)
		}
		for at := range claim.Spec.Devices.Requests {
			pin(claim.Name, &claim.Spec.Devices.Requests[at], given[claim.Name])
		}
		claims = append(claims, claim)
	}
	var slices []*resourceapi.ResourceSlice
	for _, slice := range asks.Slices {
		slice = slice.DeepCopy()
		for at := range slice.Spec.Devices {
			device := &slice.Spec.Devices[at]
			if device.Attributes == nil {
				device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
			}
			yes := true
			for request := range chosen[[3]string{slice.Spec.Driver, slice.Spec.Pool.Name, device.Name}] {
				device.Attributes[resourceapi.QualifiedName(mark+"/"+request)] = resourceapi.DeviceAttribute{BoolValue: &yes}
			}
		}
		slices = append(slices, slice)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, j.features, state, byName, slices, j.cel)
	if err != nil {
		return false, err
	}
	found, err := allocator.Allocate(ctx, node, claims)
	return err == nil && found != nil, nil
}

// pin leaves a request the way that was taken, with the devices that are marked for it.
func pin(claim string, request *resourceapi.DeviceRequest, given []result) {
	marked := func(name string) resourceapi.DeviceSelector {
		expression := fmt.Sprintf("%q in device.attributes[%q]", claim+"/"+name, mark)
		return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
	}
	if exactly := request.Exactly; exactly != nil {
		exactly.AllocationMode = resourceapi.DeviceAllocationModeExactCount
		exactly.Count = int64(len(named(given, request.Name)))
		exactly.Selectors = append([]resourceapi.DeviceSelector{marked(request.Name)}, exactly.Selectors...)
		return
	}
	var taken []resourceapi.DeviceSubRequest
	for _, sub := range request.FirstAvailable {
		name := request.Name + "/" + sub.Name
		if of := named(given, name); len(of) > 0 {
			sub.AllocationMode = resourceapi.DeviceAllocationModeExactCount
			sub.Count = int64(len(of))
			sub.Selectors = append([]resourceapi.DeviceSelector{marked(name)}, sub.Selectors...)
			taken = append(taken, sub)
		}
	}
	request.FirstAvailable = taken
}
