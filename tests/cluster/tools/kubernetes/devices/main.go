// devices answers what Kubernetes' own code makes of claims on devices (DRA) and of the CEL
// selectors in them: its structured allocator, with the features that are on by default, and its
// CEL environment for devices.
//
//	devices allocate     comes in, a line each: a cluster as JSON (see allocate.go)
//	devices select       comes in, a line each: expressions and devices (see selectors.go)
//	devices cases FILE   the cases of cel/compile_test.go of k8s.io/dynamic-resource-allocation
//
// Goes out, a line each: the answers.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	gates "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
)

// judge is what both questions are asked with.
type judge struct {
	features structured.Features
	cel      *cel.Cache
}

func main() {
	klog.SetLogger(logr.Discard())
	enabled := feature.NewSchedulerFeaturesFromGates(gates.DefaultFeatureGate)
	asked := judge{
		features: dynamicresources.AllocatorFeatures(enabled),
		cel: cel.NewCache(10_000, cel.Features{
			EnableConsumableCapacity: enabled.EnableDRAConsumableCapacity,
			EnableListTypeAttributes: enabled.EnableDRAListTypeAttributes,
		}),
	}
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "allocate":
		err = answer(asked.allocate)
	case len(os.Args) == 2 && os.Args[1] == "select":
		err = answer(asked.selects)
	case len(os.Args) == 3 && os.Args[1] == "cases":
		err = cases(os.Args[2])
	default:
		err = errors.New("usage: devices allocate | select | cases FILE")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "devices:", err)
		os.Exit(1)
	}
}

func answer[Question, Answer any](of func(Question) (Answer, error)) error {
	decoder := json.NewDecoder(bufio.NewReaderSize(os.Stdin, 1<<20))
	encoder := json.NewEncoder(os.Stdout)
	for decoder.More() {
		var question Question
		if err := decoder.Decode(&question); err != nil {
			return err
		}
		answer, err := of(question)
		if err != nil {
			return err
		}
		if err := encoder.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}
