package main

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// device is what an expression is asked about.
type device struct {
	Driver     string                                                    `json:"driver"`
	Shared     *bool                                                     `json:"shared,omitempty"`
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

// selection is one expression, and the device that it is asked about.
type selection struct {
	Expression string `json:"expression"`
	Device     device `json:"device"`
}

// selected is the answer: at most one of the errors.
type selected struct {
	Matches bool   `json:"matches"`
	Compile string `json:"compile,omitempty"`
	Run     string `json:"run,omitempty"`
}

func (j judge) selects(asks []selection) ([]selected, error) {
	answers := make([]selected, 0, len(asks))
	for _, ask := range asks {
		compiled := j.cel.GetOrCompile(ask.Expression)
		if compiled.Error != nil {
			answers = append(answers, selected{Compile: compiled.Error.Error()})
			continue
		}
		matches, err := j.matches(compiled, ask.Device)
		answer := selected{Matches: matches}
		if err != nil {
			answer = selected{Run: err.Error()}
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

func (j judge) matches(compiled cel.CompilationResult, of device) (matches bool, err error) {
	// Functions of the environment may panic on values that no API server lets be written.
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	matches, _, err = compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   of.Driver,
		AllowMultipleAllocations: of.Shared,
		Attributes:               of.Attributes,
		Capacity:                 of.Capacity,
	})
	return matches, err
}
