// Command crds reads Kubernetes objects, as YAML documents on standard input, and writes what the
// projects that they are for would refuse: of custom resources of Envoy Gateway, the Gateway API,
// Istio and Contour, and of the settings of Envoy Gateway and Contour in ConfigMaps. Each is read
// by the project's own Go type, which knows every field, and held against the schema by which an
// API server judges it. Rules in CEL, which schemas have besides, are not evaluated. It exits 1
// when something is refused, or not known.
//
// It is a module of its own: whoever uses Weir as a library should not have the modules of three
// gateways in their build list.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func main() {
	os.Exit(run(os.Stdin, os.Stderr)) //nolint:forbidigo // this is main
}

// run checks all documents and returns the exit code.
func run(in io.Reader, stderr io.Writer) int {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(in))
	code := 0
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return code
		}
		if err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		if err := check(document); err != nil {
			fmt.Fprintln(stderr, err)
			code = 1
		}
	}
}

// An object is what all objects have.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Data map[string]string `json:"data"` // of a ConfigMap
}

// check says what is wrong with one document.
func check(document []byte) error {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return fmt.Errorf("not YAML: %w", err)
	}
	var o object
	if err := yaml.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("not an object: %w", err)
	}
	switch {
	case o.Kind == "":
		return nil // nothing but comments
	case o.Kind == "ConfigMap":
		err = checkSettings(o.Data)
	default:
		err = checkResource(o, text)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.Metadata.Name, err)
	}
	return nil
}
