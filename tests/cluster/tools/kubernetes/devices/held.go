package main

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// held adds up what an answer takes beside what claims have already.
type held struct {
	checks *checks
	// Devices that are taken whole.
	whole sets.Set[structured.DeviceID]
	// Devices of the claim that is looked at, for monitoring too.
	claim sets.Set[structured.DeviceID]
	// Of shared devices.
	amounts structured.ConsumedCapacityCollection
	// Devices of the answer that take something of what their pool shares.
	consuming sets.Set[structured.DeviceID]
}

func newHeld(c *checks) *held {
	return &held{
		checks:    c,
		whole:     c.state.AllocatedDevices.Clone(),
		claim:     sets.New[structured.DeviceID](),
		amounts:   c.state.AggregatedCapacity.Clone(),
		consuming: sets.New[structured.DeviceID](),
	}
}

func (h *held) take(id structured.DeviceID, given result, device published, admin bool) string {
	shared := value(device.AllowMultipleAllocations)
	if !shared && h.claim.Has(id) {
		return fmt.Sprintf("device %s twice in one claim", id)
	}
	h.claim.Insert(id)
	// It takes nothing away from others.
	if admin {
		return ""
	}
	if h.whole.Has(id) {
		return fmt.Sprintf("device %s is another claim's", id)
	}
	if shared {
		h.amounts.Insert(structured.NewDeviceConsumedCapacity(id, given.ConsumedCapacity))
	} else {
		h.whole.Insert(id)
	}
	h.consuming.Insert(id)
	return ""
}

func (h *held) claimEnds() {
	h.claim = sets.New[structured.DeviceID]()
}

// overdrawn says of what more is taken than there is.
func (h *held) overdrawn() string {
	for key, pool := range h.checks.pools {
		left := map[[2]string]resource.Quantity{}
		for _, slice := range pool.slices {
			for _, set := range slice.Spec.SharedCounters {
				for name, counter := range set.Counters {
					left[[2]string{set.Name, name}] = counter.Value.DeepCopy()
				}
			}
		}
		consumes := false
		for name, device := range pool.devices {
			id := structured.MakeDeviceID(key[0], key[1], name)
			for of, amount := range h.amounts[id] {
				if capacity, has := device.Capacity[of]; has && h.consuming.Has(id) && amount.Cmp(capacity.Value) > 0 {
					return fmt.Sprintf("%s of %s of device %s, which has %s", amount, of, id, capacity.Value.String())
				}
			}
			if !h.consuming.Has(id) && !structured.IsDeviceAllocated(id, &h.checks.state) {
				continue
			}
			// Another share of a device that is held takes nothing more of them.
			isNew := !structured.IsDeviceAllocated(id, &h.checks.state)
			consumes = consumes || isNew && len(device.ConsumesCounters) > 0
			consume(left, device.Device)
		}
		for counter, amount := range left {
			if consumes && amount.Sign() < 0 {
				return fmt.Sprintf("counter %s of pool %s is overdrawn", counter, key)
			}
		}
	}
	return ""
}

func consume(left map[[2]string]resource.Quantity, device *resourceapi.Device) {
	for _, of := range device.ConsumesCounters {
		for name, counter := range of.Counters {
			amount := left[[2]string{of.CounterSet, name}]
			amount.Sub(counter.Value)
			left[[2]string{of.CounterSet, name}] = amount
		}
	}
}
