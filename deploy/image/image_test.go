package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const dockerfile = `FROM --platform=$BUILDPLATFORM golang AS build
RUN something that nobody reads \
	over two lines
FROM scratch AS base
ARG VERSION
COPY --from=build /out/one /bin/one
USER 1:2
EXPOSE 80 \
  81
LABEL title="a title"
LABEL version="$VERSION"
# A comment.
FROM base AS more
COPY --from=build /out/two /bin/two
LABEL title="another"
FROM base
ENTRYPOINT ["/bin/one", "serve"]
`

func TestAStageHasWhatTheStagesBelowItHave(t *testing.T) {
	t.Parallel()
	got, err := Stages(dockerfile, map[string]string{"VERSION": "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	one, two := Copy{"/out/one", "/bin/one"}, Copy{"/out/two", "/bin/two"}
	ports := []string{"80", "81"}
	want := []Stage{
		{Name: "base", Copies: []Copy{one}, User: "1:2", Ports: ports, Labels: map[string]string{"title": "a title", "version": "1.2.3"}},
		{Name: "more", Copies: []Copy{one, two}, User: "1:2", Ports: ports, Labels: map[string]string{"title": "another", "version": "1.2.3"}},
		{Copies: []Copy{one}, User: "1:2", Ports: ports, Entrypoint: []string{"/bin/one", "serve"}, Labels: map[string]string{"title": "a title", "version": "1.2.3"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
}

func TestAnInstructionThatTheImageWouldLackIsAnErrorWithItsLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"FROM scratch\nRUN x":                           "line 2: RUN: must be one of ARG, COPY,",
		"FROM scratch\n\n# x\nWORKDIR /":                "line 4: WORKDIR",
		"FROM scratch\nCOPY . /":                        `line 2: COPY: got ["." "/"] from stage "", must be --from=STAGE`,
		"FROM scratch\nCOPY --from=a /a /b/":            `got ["/a" "/b/"] from stage "a"`,
		"FROM scratch\nCOPY --from=a --chmod=700 /a /b": "no flag but --from",
		"FROM scratch\nENTRYPOINT /bin/x":               `line 2: ENTRYPOINT: got ["/bin/x"], must be a list as JSON`,
		"FROM scratch\nLABEL a=\"$B\"\nLABEL b=\"$C\"":  "line 3: LABEL: no value for $C",
		"FROM golang AS build\nRUN x":                   "no stage begins from scratch",
		"FROM scratch\nNOTHING x":                       "line 2: unknown instruction: NOTHING",
		"":                                              "file with no instructions",
	} {
		if _, err := Stages(text, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestTheSameFilesGiveTheSameImageWithTheConfigOfTheStage(t *testing.T) {
	t.Parallel()
	stages, err := Stages(dockerfile, map[string]string{"VERSION": "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "one")
	if err := os.WriteFile(file, []byte("program"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	stage, platform := stages[2], v1.Platform{OS: "linux", Architecture: "arm64"}
	var digests [2]v1.Hash
	for i := range digests {
		built, err := stage.Build(platform, map[string]string{"/out/one": file}, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		// As it is on disk: in memory an empty map of annotations differs from none.
		index, err := stage.Index([]v1.Image{built})
		if err != nil {
			t.Fatal(err)
		}
		path, err := layout.Write(t.TempDir(), index)
		if err != nil {
			t.Fatal(err)
		}
		written, err := path.ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(written); err != nil {
			t.Error(err)
		}
		config, err := built.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c := config.Config; c.User != "1:2" || config.Architecture != "arm64" || c.Labels["version"] != "1.2.3" || len(c.ExposedPorts) != 2 {
			t.Errorf("got %+v", config)
		}
		if digests[i], err = built.Digest(); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("got %v, want twice the same", digests)
	}
	if _, err := stages[1].Build(platform, map[string]string{"/out/two": "nothing"}, time.Time{}); err == nil ||
		!strings.Contains(err.Error(), "/bin/one of the image: no file is given") || !strings.Contains(err.Error(), "/bin/two of the image: open nothing") {
		t.Errorf("got %v, want both files", err)
	}
}
