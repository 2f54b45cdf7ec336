package main

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

// checks says whether devices are what claims ask for and no more than there is: without a
// search, and alike for what Kubernetes and for what Aliquot answers.
type checks struct {
	judge   judge
	classes classes
	state   structured.AllocatedState
	// The newest generation of each pool, by driver and name.
	pools map[[2]string]*pool
}

type pool struct {
	generation int64
	slices     []*resourceapi.ResourceSlice
	// Every device of it, by name.
	devices map[string]published
	// Why nothing of it may be given away.
	fault string
}

type published struct {
	*resourceapi.Device
	slice *resourceapi.ResourceSlice
}

type result = resourceapi.DeviceRequestAllocationResult

func newChecks(j judge, asks cluster, byName classes, state structured.AllocatedState) *checks {
	c := &checks{judge: j, classes: byName, state: state, pools: map[[2]string]*pool{}}
	for _, slice := range asks.Slices {
		key := [2]string{slice.Spec.Driver, slice.Spec.Pool.Name}
		known := c.pools[key]
		if known == nil || slice.Spec.Pool.Generation > known.generation {
			known = &pool{generation: slice.Spec.Pool.Generation, devices: map[string]published{}}
			c.pools[key] = known
		}
		if slice.Spec.Pool.Generation == known.generation {
			known.slices = append(known.slices, slice)
		}
	}
	for _, pool := range c.pools {
		for _, slice := range pool.slices {
			if int64(len(pool.slices)) != slice.Spec.Pool.ResourceSliceCount {
				pool.fault = "incomplete"
			}
			for at := range slice.Spec.Devices {
				device := published{&slice.Spec.Devices[at], slice}
				if _, twice := pool.devices[device.Name]; twice {
					pool.fault = "two devices of one name"
				}
				pool.devices[device.Name] = device
			}
		}
	}
	return c
}

func (c *checks) isOn(node *v1.Node, device published) bool {
	name, all, selector := device.slice.Spec.NodeName, device.slice.Spec.AllNodes, device.slice.Spec.NodeSelector
	if on := device.slice.Spec.PerDeviceNodeSelection; on != nil && *on {
		name, all, selector = device.NodeName, device.AllNodes, device.NodeSelector
	}
	matches, err := structured.NodeMatches(c.judge.features, node, value(name), value(all), selector)
	return err == nil && matches
}

func value[T any](of *T) T {
	var none T
	if of == nil {
		return none
	}
	return *of
}

// one is a request, or an alternative of one.
type one struct {
	name, class string
	selectors   []resourceapi.DeviceSelector
	all, admin  bool
	count       int64
	tolerations []resourceapi.DeviceToleration
	capacity    *resourceapi.CapacityRequirements
}

// ways of a request: one of them has to be taken whole.
func ways(request resourceapi.DeviceRequest) []one {
	if exactly := request.Exactly; exactly != nil {
		return []one{{
			name: request.Name, class: exactly.DeviceClassName, selectors: exactly.Selectors,
			all:   exactly.AllocationMode == resourceapi.DeviceAllocationModeAll,
			admin: value(exactly.AdminAccess), count: exactly.Count,
			tolerations: exactly.Tolerations, capacity: exactly.Capacity,
		}}
	}
	var all []one
	for _, sub := range request.FirstAvailable {
		all = append(all, one{
			name: request.Name + "/" + sub.Name, class: sub.DeviceClassName, selectors: sub.Selectors,
			all:   sub.AllocationMode == resourceapi.DeviceAllocationModeAll,
			count: sub.Count, tolerations: sub.Tolerations, capacity: sub.Capacity,
		})
	}
	return all
}

// of says what those devices break on that node; nothing where they are right.
func (c *checks) of(node *v1.Node, claims []*resourceapi.ResourceClaim, given map[string][]result) string {
	held := newHeld(c)
	for _, claim := range claims {
		results, known := given[claim.Name]
		if !known {
			return fmt.Sprintf("claim %s gets nothing", claim.Name)
		}
		if len(results) > resourceapi.AllocationResultsMaxSize {
			return fmt.Sprintf("claim %s gets %d devices", claim.Name, len(results))
		}
		count := 0
		for _, request := range claim.Spec.Devices.Requests {
			taken := 0
			for _, way := range ways(request) {
				of := named(results, way.name)
				count += len(of)
				if len(of) == 0 {
					continue
				}
				taken++
				if wrong := c.way(node, way, of, held); wrong != "" {
					return fmt.Sprintf("claim %s, request %s: %s", claim.Name, way.name, wrong)
				}
			}
			if taken != 1 {
				return fmt.Sprintf("claim %s, request %s: %d of its ways are taken", claim.Name, request.Name, taken)
			}
		}
		if count != len(results) {
			return fmt.Sprintf("claim %s: a device of no request", claim.Name)
		}
		for at, constraint := range claim.Spec.Devices.Constraints {
			if wrong := c.constraint(constraint, results); wrong != "" {
				return fmt.Sprintf("claim %s, constraint %d: %s", claim.Name, at, wrong)
			}
		}
		held.claimEnds()
	}
	return held.overdrawn()
}

func named(results []result, name string) []result {
	var of []result
	for _, one := range results {
		if one.Request == name {
			of = append(of, one)
		}
	}
	return of
}

func (c *checks) way(node *v1.Node, way one, results []result, held *held) string {
	if !way.all && int64(len(results)) != way.count {
		return fmt.Sprintf("%d devices instead of %d", len(results), way.count)
	}
	got := map[structured.DeviceID]bool{}
	for _, one := range results {
		pool := c.pools[[2]string{one.Driver, one.Pool}]
		if pool == nil {
			return fmt.Sprintf("pool %s/%s is not there", one.Driver, one.Pool)
		}
		device, known := pool.devices[one.Device]
		switch {
		case !known:
			return fmt.Sprintf("device %s is not in the newest generation", one.Device)
		case pool.fault != "":
			return fmt.Sprintf("pool %s/%s: %s", one.Driver, one.Pool, pool.fault)
		case !c.isOn(node, device):
			return fmt.Sprintf("device %s is another node's", one.Device)
		case !c.selects(way, one.Driver, device):
			return fmt.Sprintf("device %s is not selected", one.Device)
		case value(one.AdminAccess) != way.admin:
			return "admin access that was not asked for, or none"
		case keepsAway(device, way):
			return fmt.Sprintf("device %s has a taint that is not tolerated", one.Device)
		}
		id := structured.MakeDeviceID(one.Driver, one.Pool, one.Device)
		if wrong := amounts(way, one, device); wrong != "" {
			return wrong
		}
		if wrong := held.take(id, one, device, way.admin); wrong != "" {
			return wrong
		}
		got[id] = true
	}
	if way.all {
		return c.leftOut(node, way, got)
	}
	return ""
}

// leftOut is a device that a request for all ought to have got.
func (c *checks) leftOut(node *v1.Node, way one, got map[structured.DeviceID]bool) string {
	for key, pool := range c.pools {
		for name, device := range pool.devices {
			id := structured.MakeDeviceID(key[0], key[1], name)
			if got[id] || !c.isOn(node, device) || !c.selects(way, key[0], device) {
				continue
			}
			if c.hasRoom(way, id, device) {
				return fmt.Sprintf("all devices, but not %s", id)
			}
		}
	}
	return ""
}

// hasRoom: the device could serve the request beside what claims have of it.
func (c *checks) hasRoom(way one, id structured.DeviceID, device published) bool {
	if way.capacity != nil {
		for name := range way.capacity.Requests {
			if _, has := device.Capacity[name]; !has {
				return false
			}
		}
	}
	for name, capacity := range device.Capacity {
		wants, legal := least(asked(way, name), capacity)
		if !legal {
			return false
		}
		if used := c.state.AggregatedCapacity[id][name]; used != nil {
			wants.Add(*used)
		}
		if wants.Cmp(capacity.Value) > 0 {
			return false
		}
	}
	return true
}

func (c *checks) selects(way one, driver string, device published) bool {
	class := c.classes[way.class]
	if class == nil {
		return false
	}
	for _, selector := range append(append([]resourceapi.DeviceSelector{}, class.Spec.Selectors...), way.selectors...) {
		compiled := c.judge.cel.GetOrCompile(selector.CEL.Expression)
		if compiled.Error != nil {
			return false
		}
		matches, err := c.judge.matches(compiled, deviceOf(driver, device))
		if err != nil || !matches {
			return false
		}
	}
	return true
}

func deviceOf(driver string, of published) device {
	return device{driver, of.AllowMultipleAllocations, of.Attributes, of.Capacity}
}

func keepsAway(device published, way one) bool {
	for _, taint := range device.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		tolerated := false
		for _, toleration := range way.tolerations {
			tolerated = tolerated || resourceclaim.ToleratesTaint(toleration, taint)
		}
		if !tolerated {
			return true
		}
	}
	return false
}

func (c *checks) constraint(constraint resourceapi.DeviceConstraint, results []result) string {
	name, distinct := constraint.MatchAttribute, false
	if name == nil {
		name, distinct = constraint.DistinctAttribute, true
	}
	seen := map[string]bool{}
	for _, one := range results {
		concerned := len(constraint.Requests) == 0
		for _, request := range constraint.Requests {
			concerned = concerned || request == one.Request || strings.HasPrefix(one.Request, request+"/")
		}
		if !concerned {
			continue
		}
		device := c.pools[[2]string{one.Driver, one.Pool}].devices[one.Device]
		attribute, has := device.Attributes[resourceapi.QualifiedName(*name)]
		if !has {
			short := strings.TrimPrefix(string(*name), one.Driver+"/")
			attribute, has = device.Attributes[resourceapi.QualifiedName(short)]
		}
		if !has {
			return fmt.Sprintf("device %s has no %s", one.Device, *name)
		}
		text := attribute.String()
		if distinct && seen[text] {
			return fmt.Sprintf("two devices with the same %s", *name)
		}
		seen[text] = true
	}
	if !distinct && len(seen) > 1 {
		return fmt.Sprintf("devices with different %s", *name)
	}
	return ""
}

func asked(way one, name resourceapi.QualifiedName) *resource.Quantity {
	if way.capacity == nil {
		return nil
	}
	if amount, known := way.capacity.Requests[name]; known {
		return &amount
	}
	return nil
}

// least is the smallest amount that the policy of a capacity lets a request have; false where it
// lets it have none.
func least(asked *resource.Quantity, capacity resourceapi.DeviceCapacity) (resource.Quantity, bool) {
	policy := capacity.RequestPolicy
	switch {
	case asked == nil && policy != nil && policy.Default != nil:
		return policy.Default.DeepCopy(), true
	case asked == nil:
		return capacity.Value.DeepCopy(), true
	case policy == nil:
		return asked.DeepCopy(), true
	case policy.ValidRange != nil:
		amount := policy.ValidRange.Min.DeepCopy()
		if asked.Cmp(amount) > 0 {
			amount = asked.DeepCopy()
		}
		if step := policy.ValidRange.Step; step != nil {
			amount = policy.ValidRange.Min.DeepCopy()
			for amount.Cmp(*asked) < 0 {
				amount.Add(*step)
			}
		}
		return amount, policy.ValidRange.Max == nil || amount.Cmp(*policy.ValidRange.Max) <= 0
	case len(policy.ValidValues) > 0:
		for _, value := range policy.ValidValues {
			if value.Cmp(*asked) >= 0 {
				return value.DeepCopy(), true
			}
		}
		return *asked, false
	}
	return asked.DeepCopy(), true
}

// amounts says what is wrong with what a request takes of a device.
func amounts(way one, given result, device published) string {
	if way.capacity != nil {
		for name := range way.capacity.Requests {
			if _, has := device.Capacity[name]; !has {
				return fmt.Sprintf("device %s has no capacity %s", given.Device, name)
			}
		}
	}
	shared := value(device.AllowMultipleAllocations)
	if !shared && (given.ShareID != nil || len(given.ConsumedCapacity) > 0) {
		return fmt.Sprintf("device %s is no shared one", given.Device)
	}
	if shared && given.ShareID == nil {
		return fmt.Sprintf("device %s is shared, and the share has no name", given.Device)
	}
	for name, capacity := range device.Capacity {
		wants, legal := least(asked(way, name), capacity)
		if !legal || wants.Cmp(capacity.Value) > 0 {
			return fmt.Sprintf("device %s cannot give so much %s", given.Device, name)
		}
		if !shared {
			continue
		}
		if has := given.ConsumedCapacity[name]; has.Cmp(wants) != 0 {
			return fmt.Sprintf("device %s gives %s of %s instead of %s", given.Device, has.String(), name, wants.String())
		}
	}
	return ""
}
