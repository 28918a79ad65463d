package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"
)

// A definition is what is needed of a CustomResourceDefinition.
type definition struct {
	Spec struct {
		Group string `json:"group"`
		Names struct {
			Kind string `json:"kind"`
		} `json:"names"`
		Versions []struct {
			Name   string `json:"name"`
			Schema struct {
				OpenAPIV3Schema *spec.Schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

// holdAgainstSchema says where an object is not as its schema, which is in that file, has it.
func holdAgainstSchema(file string, o object, text []byte) error {
	schema, err := readSchema(file, o)
	if err != nil {
		return err
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return err
	}
	return validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(plain).AsError()
}

// readSchema finds the schema of a kind in a file of definitions. Those of charts stand between
// lines of templates.
func readSchema(file string, o object) (*spec.Schema, error) {
	path, err := inModule(file)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var lines []string
		for line := range strings.Lines(string(document)) {
			if !strings.HasPrefix(line, "{{") {
				lines = append(lines, line)
			}
		}
		var d definition
		if err := yaml.Unmarshal([]byte(strings.Join(lines, "")), &d); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, version := range d.Spec.Versions {
			if d.Spec.Names.Kind == o.Kind && d.Spec.Group+"/"+version.Name == o.APIVersion && version.Schema.OpenAPIV3Schema != nil {
				return version.Schema.OpenAPIV3Schema, nil
			}
		}
	}
	return nil, fmt.Errorf("%s: no schema of %s %s", file, o.APIVersion, o.Kind)
}

// inModule returns where a file is that is named by its module and the path in it.
func inModule(file string) (string, error) {
	module, path, _ := strings.Cut(file, " ")
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w", module, err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), path), nil
}
