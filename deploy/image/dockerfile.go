// Package image builds the container images of a release from the stages of deploy/Dockerfile,
// without a container engine. So a release and `docker build` make images with the same files.
package image

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// Stage is a stage of a Dockerfile that begins from scratch.
type Stage struct {
	Name       string // "" for the last stage, which is the image without --target
	Copies     []Copy
	User       string
	Ports      []string
	Entrypoint []string
	Labels     map[string]string
}

// Copy is a file that the build has made, and its path in the image.
type Copy struct{ From, To string }

// Stages reads the stages of a Dockerfile that begin from scratch, or from such a stage. $NAME is
// the argument NAME. The errors name lines. Instructions of other stages are not read.
func Stages(dockerfile string, arguments map[string]string) ([]Stage, error) {
	parsed, err := parser.Parse(strings.NewReader(dockerfile))
	if err != nil {
		return nil, err
	}
	all, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, err
	}
	expand := expander(parsed.EscapeToken, arguments)
	var (
		stages []Stage
		errs   []error
	)
	for _, from := range all {
		stage, found := begin(from, stages)
		if !found {
			continue
		}
		for _, command := range from.Commands {
			if err := stage.add(command, expand); err != nil {
				errs = append(errs, fmt.Errorf("line %d: %s: %w", command.Location()[0].Start.Line, strings.ToUpper(command.Name()), err))
			}
		}
		stages = append(stages, stage)
	}
	if len(stages) == 0 {
		errs = append(errs, errors.New("no stage begins from scratch"))
	}
	return stages, errors.Join(errs...)
}

// expander returns a function that puts the arguments into a word. An argument without a value is
// an error.
func expander(escape rune, arguments map[string]string) instructions.SingleWordExpander {
	lex, environment := shell.NewLex(escape), make([]string, 0, len(arguments))
	for name, value := range arguments {
		environment = append(environment, name+"="+value)
	}
	return func(word string) (string, error) {
		result, err := lex.ProcessWordWithMatches(word, shell.EnvsFromSlice(environment))
		if err == nil && len(result.Unmatched) > 0 {
			err = fmt.Errorf("no value for $%s", strings.Join(slices.Sorted(maps.Keys(result.Unmatched)), ", $"))
		}
		return result.Result, err
	}
}

// begin returns a new stage, and whether the stage begins from scratch.
func begin(from instructions.Stage, before []Stage) (Stage, bool) {
	if from.BaseName == "scratch" {
		return Stage{Name: from.Name, Labels: make(map[string]string)}, true
	}
	for _, s := range before {
		if s.Name == from.BaseName {
			s.Name, s.Labels = from.Name, maps.Clone(s.Labels)
			s.Copies, s.Ports = slices.Clone(s.Copies), slices.Clone(s.Ports)
			return s, true
		}
	}
	return Stage{}, false
}

// add takes an instruction into the stage.
func (s *Stage) add(command instructions.Command, expand instructions.SingleWordExpander) error {
	if c, ok := command.(instructions.SupportsSingleWordExpansion); ok {
		if err := c.Expand(expand); err != nil {
			return err
		}
	}
	switch c := command.(type) {
	case *instructions.ArgCommand:
	case *instructions.CopyCommand:
		return s.copy(c)
	case *instructions.UserCommand:
		s.User = c.User
	case *instructions.ExposeCommand:
		s.Ports = append(s.Ports, c.Ports...)
	case *instructions.EntrypointCommand:
		if c.PrependShell {
			return fmt.Errorf("got %q, must be a list as JSON: the image has no shell", c.CmdLine)
		}
		s.Entrypoint = c.CmdLine
	case *instructions.LabelCommand:
		for _, label := range c.Labels {
			s.Labels[label.Key] = label.Value
		}
	default:
		return errors.New("must be one of ARG, COPY, USER, EXPOSE, ENTRYPOINT, LABEL in a stage from scratch")
	}
	return nil
}

// copy takes one file of another stage into the stage.
func (s *Stage) copy(c *instructions.CopyCommand) error {
	files := append(slices.Clone(c.SourcePaths), c.DestPath)
	if c.From == "" || len(files) != 2 || !path.IsAbs(files[0]) || !path.IsAbs(files[1]) || strings.HasSuffix(files[1], "/") {
		return fmt.Errorf("got %q from stage %q, must be --from=STAGE /FILE /FILE", files, c.From)
	}
	if c.Chown != "" || c.Chmod != "" || c.Link || c.Parents || len(c.ExcludePatterns) > 0 {
		return errors.New("must have no flag but --from")
	}
	s.Copies = append(s.Copies, Copy{From: files[0], To: files[1]})
	return nil
}
