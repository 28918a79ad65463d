package deploy

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// board is a dashboard of Grafana: the fields of Grafana's classic JSON model that ours has.
// Another field is probably misspelled.
type board struct {
	Title, UID, Description, Timezone, Refresh string
	Tags                                       []string
	Editable                                   bool
	SchemaVersion, Version, GraphTooltip       int
	Time                                       struct{ From, To string }
	Templating                                 struct{ List []variable }
	Annotations                                struct{ List []any }
	Panels                                     []panel
}

type variable struct {
	Name, Label, Type, Definition, AllValue string
	Query, Current                          any
	Datasource                              datasource
	Refresh, Sort                           int
	IncludeAll, Multi                       bool
}

type datasource struct{ Type, UID string }

type panel struct {
	ID                       int
	Title, Type, Description string
	Datasource               datasource
	GridPos                  struct{ H, W, X, Y int }
	Collapsed                bool
	Panels                   []any
	Options                  any
	FieldConfig              struct {
		Defaults struct {
			Unit, NoValue string
			Min, Max      *float64
			Custom        any
			Thresholds    struct {
				Mode  string
				Steps []struct {
					Color string
					Value *float64
				}
			}
		}
		Overrides []any
	}
	Targets []struct {
		RefID, Expr, LegendFormat string
		Datasource                datasource
	}
}

// readBoard returns the board of Weir.
func readBoard(t *testing.T) board {
	t.Helper()
	data := parts.Read(t, "grafana/weir.json")
	decoder := json.NewDecoder(strings.NewReader(data))
	decoder.DisallowUnknownFields()
	var b board
	if err := decoder.Decode(&b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTheBoardIsAsGrafanaReadsIt holds the rules of Grafana's JSON model, and of its linter for
// boards.
func TestTheBoardIsAsGrafanaReadsIt(t *testing.T) {
	t.Parallel()
	b := readBoard(t)
	variables := []string{"__rate_interval"}
	for _, v := range b.Templating.List {
		variables = append(variables, v.Name)
		if v.Label == "" || v.Type == "query" && (v.Datasource.UID != "${datasource}" || v.AllValue != ".+" || v.Refresh != 2) {
			t.Errorf("variable %+v: want a label, the source ${datasource}, all as .+, and a refresh when the time changes", v)
		}
	}
	if b.SchemaVersion < 36 || b.UID == "" {
		t.Errorf("schema version %d and uid %q: want the version that knows sources by uid, or later, and a uid", b.SchemaVersion, b.UID)
	}
	units := []string{"short", "reqps", "ops", "s", "bytes", "percentunit"}
	ids, titles, cells := make(map[int]bool), make(map[string]bool), make(map[[2]int]string)
	for _, p := range b.Panels {
		if ids[p.ID] || titles[p.Title] || p.ID == 0 {
			t.Errorf("the panel %q must have an id and a title of its own", p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("the panel %q is on %q, or beside the board", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(strings.SplitAfter(p.Description, ". ")) < 2 || len(p.Targets) == 0 {
			t.Errorf("the panel %q: want an expression, and a description of two sentences: its numbers, and a next step", p.Title)
		}
		if p.Datasource.UID != "${datasource}" || !slices.Contains(units, p.FieldConfig.Defaults.Unit) {
			t.Errorf("the panel %q: source %q and unit %q", p.Title, p.Datasource.UID, p.FieldConfig.Defaults.Unit)
		}
		for i, step := range p.FieldConfig.Defaults.Thresholds.Steps {
			if steps := p.FieldConfig.Defaults.Thresholds.Steps; (i == 0) != (step.Value == nil) || i > 1 && *step.Value <= *steps[i-1].Value {
				t.Errorf("the panel %q: the first threshold has no value, and the others grow", p.Title)
			}
		}
		refs := make(map[string]bool)
		for _, target := range p.Targets {
			if refs[target.RefID] || target.Datasource != p.Datasource {
				t.Errorf("the panel %q: each target has a letter of its own, and the panel's source", p.Title)
			}
			refs[target.RefID] = true
			for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !slices.Contains(variables, m[1]) {
					t.Errorf("the panel %q: nothing defines the variable %s", p.Title, m[1])
				}
			}
		}
	}
}
