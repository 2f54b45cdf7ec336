package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
)

// testCase is a case of Kubernetes' own table: what is asked, and what has to come of it.
type testCase struct {
	Name string `json:"name"`
	selection
	// Part of the message that is expected.
	Compile string `json:"compile,omitempty"`
	Run     string `json:"run,omitempty"`
	Matches bool   `json:"matches"`
	// It is about a feature that is off by default, or about expressions that are new.
	Apart bool `json:"apart,omitempty"`
}

// cases prints the facts of the table "testcases" in a file of Go: nothing of it is run.
func cases(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return err
	}
	var table *ast.CompositeLit
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if ok && spec.Names[0].Name == "testcases" {
			table, _ = spec.Values[0].(*ast.CompositeLit)
		}
		return table == nil
	})
	if table == nil {
		return fmt.Errorf("%s has no table of cases", path)
	}
	encoder := json.NewEncoder(os.Stdout)
	for _, entry := range table.Elts {
		entry := entry.(*ast.KeyValueExpr)
		one, err := readCase(entry)
		if err != nil {
			// Values that are computed: said, not guessed.
			fmt.Fprintf(os.Stderr, "left out: %v\n", err)
			continue
		}
		if err := encoder.Encode(one); err != nil {
			return err
		}
	}
	return nil
}

func readCase(entry *ast.KeyValueExpr) (testCase, error) {
	name, err := literal(entry.Key)
	if err != nil {
		return testCase{}, err
	}
	one := testCase{Name: name.(string)}
	fields := map[string]any{}
	for _, field := range entry.Value.(*ast.CompositeLit).Elts {
		field := field.(*ast.KeyValueExpr)
		key := field.Key.(*ast.Ident).Name
		switch key {
		case "envType":
			one.Apart = true
			continue
		case "expectCost", "enableConsumableCapacity":
			continue
		}
		if fields[key], err = literal(field.Value); err != nil {
			return testCase{}, fmt.Errorf("%s: %s: %w", one.Name, key, err)
		}
	}
	one.Apart = one.Apart || fields["enableListTypeAttributes"] == true
	delete(fields, "enableListTypeAttributes")
	text, err := json.Marshal(map[string]any{
		"expression": fields["expression"], "matches": fields["expectMatch"] == true,
		"compile": fields["expectCompileError"], "run": fields["expectMatchError"],
		"device": map[string]any{
			"driver": fields["driver"], "shared": fields["allowMultipleAllocations"],
			"attributes": fields["attributes"], "capacity": fields["capacity"],
		},
	})
	if err != nil {
		return testCase{}, err
	}
	return one, json.Unmarshal(text, &one)
}

// Fields of the API by their names in Go.
var jsonNames = map[string]string{
	"BoolValue": "bool", "IntValue": "int", "StringValue": "string", "VersionValue": "version",
	"BoolValues": "bools", "IntValues": "ints", "StringValues": "strings", "VersionValues": "versions",
	"Value": "value",
}

// literal is the value of an expression, as JSON has it.
func literal(of ast.Expr) (any, error) {
	switch of := of.(type) {
	case *ast.BasicLit:
		switch of.Kind {
		case token.STRING:
			return strconv.Unquote(of.Value)
		case token.INT:
			return strconv.ParseInt(of.Value, 0, 64)
		}
	case *ast.Ident:
		if of.Name == "true" || of.Name == "false" {
			return of.Name == "true", nil
		}
	case *ast.BinaryExpr:
		left, err := literal(of.X)
		if err != nil {
			return nil, err
		}
		right, err := literal(of.Y)
		if err != nil {
			return nil, err
		}
		if left, ok := left.(string); ok && of.Op == token.ADD {
			if right, ok := right.(string); ok {
				return left + right, nil
			}
		}
	case *ast.CallExpr:
		return call(of)
	case *ast.CompositeLit:
		return composite(of)
	}
	return nil, fmt.Errorf("no literal: %T", of)
}

// call of one of the functions with which tables are written.
func call(of *ast.CallExpr) (any, error) {
	name := ""
	switch function := of.Fun.(type) {
	case *ast.Ident:
		name = function.Name
	case *ast.SelectorExpr:
		name = function.X.(*ast.Ident).Name + "." + function.Sel.Name
	}
	switch {
	case name == "new" || name == "ptr.To" || name == "int64" || name == "resource.MustParse":
		return literal(of.Args[0])
	case name == "strings.Repeat":
		text, err := literal(of.Args[0])
		if err != nil {
			return nil, err
		}
		times, err := literal(of.Args[1])
		if err != nil {
			return nil, err
		}
		return strings.Repeat(text.(string), int(times.(int64))), nil
	}
	return nil, fmt.Errorf("call of %q", name)
}

func composite(of *ast.CompositeLit) (any, error) {
	if len(of.Elts) > 0 {
		if _, keyed := of.Elts[0].(*ast.KeyValueExpr); !keyed {
			var list []any
			for _, element := range of.Elts {
				value, err := literal(element)
				if err != nil {
					return nil, err
				}
				list = append(list, value)
			}
			return list, nil
		}
	}
	entries := map[string]any{}
	for _, element := range of.Elts {
		element := element.(*ast.KeyValueExpr)
		key, isField := "", false
		if field, ok := element.Key.(*ast.Ident); ok {
			key, isField = jsonNames[field.Name]
			if !isField {
				return nil, fmt.Errorf("field %s", field.Name)
			}
		} else {
			text, err := literal(element.Key)
			if err != nil {
				return nil, err
			}
			key = text.(string)
		}
		value, err := literal(element.Value)
		if err != nil {
			return nil, err
		}
		entries[key] = value
	}
	return entries, nil
}
