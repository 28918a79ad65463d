// Package cases holds the cases of the suite as documents, and reads them.
//
// A document is a YAML file: domains with their rules, and cases. README.md describes the form.
package cases

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed *.yaml
var files embed.FS

// A Profile is a set of demands.
type Profile string

// The profiles, each with the ones before it.
const (
	Reference Profile = "reference" // behavior and documents of envoyproxy/ratelimit
	Strict    Profile = "strict"    // demands of the protocol, or of users, that the reference may miss
	Weir      Profile = "weir"      // rules that only Weir has
)

// Profiles returns all profiles, in order.
func Profiles() []Profile { return []Profile{Reference, Strict, Weir} }

// Includes reports whether a run of profile p has the cases of profile other.
func (p Profile) Includes(other Profile) bool {
	all := Profiles()
	return slices.Index(all, other) <= slices.Index(all, p)
}

// A Document is the content of one file.
type Document struct {
	Name    string   `yaml:"-"` // the file's name, without .yaml
	About   string   `yaml:"about"`
	Alone   bool     `yaml:"alone"`  // each case has a process of the target of its own
	Serial  bool     `yaml:"serial"` // cases run one after the other, after all others
	Needs   []string `yaml:"needs"`  // of each case
	Domains []Domain `yaml:"domains"`
	Cases   []Case   `yaml:"cases"`
	Tables  []Table  `yaml:"tables"`
}

// A Domain is one domain of rules, in the form of envoyproxy/ratelimit.
type Domain struct {
	Domain string            `yaml:"domain"`
	Forms  []string          `yaml:"forms"`  // forms that have all keys of these rules; empty means all
	Cannot map[string]string `yaml:"cannot"` // why a form cannot say these rules
	Rules  map[string]any    `yaml:"rules"`  // the document without its domain
}

// Text returns the rules as a document of envoyproxy/ratelimit.
func (d Domain) Text() (string, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(map[string]string{"domain": d.Domain}); err != nil {
		return "", err
	}
	var rules bytes.Buffer
	encoder = yaml.NewEncoder(&rules)
	encoder.SetIndent(2)
	if err := encoder.Encode(d.Rules); err != nil {
		return "", err
	}
	return text.String() + rules.String(), nil
}

// A Case is one claim about a rate limit service, with the requests that check it.
type Case struct {
	Name    string   `yaml:"name"`
	Claim   string   `yaml:"claim"`
	From    string   `yaml:"from"`    // where the expectation comes from
	Profile Profile  `yaml:"profile"` // empty means reference
	Domain  string   `yaml:"domain"`  // empty means the first one of the document
	Needs   []string `yaml:"needs"`
	Align   string   `yaml:"align"` // "second": the case begins with a second
	Steps   []Step   `yaml:"steps"`

	Document *Document `yaml:"-"`
}

// ID is the name of a case among all cases.
func (c *Case) ID() string { return c.Document.Name + "/" + c.Name }

// Features returns the features that a case needs of the target.
func (c *Case) Features() []string { return slices.Concat(c.Document.Needs, c.Needs) }

// A Table makes one case of each row. A column {name} stands in every text of the case.
type Table struct {
	Rows []map[string]string `yaml:"rows"`
	Case yaml.Node           `yaml:"case"`
}

// A Step is one action and its expected result. Exactly one of the actions is given.
type Step struct {
	Ask     string            `yaml:"ask,omitempty"`     // a request, see ParseRequest
	Race    *Race             `yaml:"race,omitempty"`    // many requests at once
	Raw     *Raw              `yaml:"raw,omitempty"`     // bytes in place of a request
	Wait    string            `yaml:"wait,omitempty"`    // a duration, or "next second"
	Health  *string           `yaml:"health,omitempty"`  // gRPC health of this service
	List    bool              `yaml:"list,omitempty"`    // services by gRPC reflection
	Reload  map[string]any    `yaml:"reload,omitempty"`  // other rules of the case's domain
	Broken  string            `yaml:"broken,omitempty"`  // a text in place of the rules of the case's domain
	Drain   *Drain            `yaml:"drain,omitempty"`   // SIGTERM under traffic
	Redis   string            `yaml:"redis,omitempty"`   // pause, resume, kill, start or failover
	Is      string            `yaml:"is,omitempty"`      // the expected answer, see ParseAnswer
	Times   int               `yaml:"times,omitempty"`   // how often the request is sent; 0 means once
	Within  string            `yaml:"within,omitempty"`  // the longest time until the answer
	Headers map[string]string `yaml:"headers,omitempty"` // of the answer: a value, "" for any, or "until hour" as in reset=hour
	Data    map[string]string `yaml:"data,omitempty"`    // dynamic metadata: a path with dots, and its value
}

// A Race sends requests at once.
type Race struct {
	Ask      string `yaml:"ask,omitempty"`   // # stands for the number of the request
	Or       string `yaml:"or,omitempty"`    // the request of every second turn
	Share    int    `yaml:"share,omitempty"` // that many requests in a row have one number; 0 means 1
	Clients  int    `yaml:"clients,omitempty"`
	Requests int    `yaml:"requests,omitempty"` // of all clients together
	Admitted string `yaml:"admitted,omitempty"` // a number, or "from..to"
	Errors   bool   `yaml:"errors,omitempty"`   // errors are allowed
	Sum      string `yaml:"sum,omitempty"`      // "distinct": each admitted request got another remaining number
}

// A Raw is a call with bytes that are no valid request.
type Raw struct {
	Method string `yaml:"method,omitempty"` // empty means ShouldRateLimit
	Hex    string `yaml:"hex,omitempty"`
	Size   int    `yaml:"size,omitempty"` // that many zero bytes follow
	Gzip   bool   `yaml:"gzip,omitempty"`
	Plain  string `yaml:"plain,omitempty"` // bytes on a connection of their own, without gRPC
}

// A Drain ends the target by SIGTERM while clients send requests.
type Drain struct {
	Ask     string `yaml:"ask,omitempty"`
	Clients int    `yaml:"clients,omitempty"`
	Health  bool   `yaml:"health,omitempty"` // health must say NOT_SERVING, or the stream end
	Longest string `yaml:"longest,omitempty"`
}

// Load reads all documents of the suite, in the order of their names.
func Load() ([]*Document, error) {
	names, err := files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []*Document
	var failed []error
	for _, name := range names {
		text, err := files.ReadFile(name.Name())
		if err != nil {
			return nil, err
		}
		d, err := Parse(strings.TrimSuffix(path.Base(name.Name()), ".yaml"), text)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		all = append(all, d)
	}
	return all, errors.Join(failed...)
}

// Parse reads a document. The error names every mistake.
func Parse(name string, text []byte) (*Document, error) {
	d := &Document{Name: name}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(d); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for i, table := range d.Tables {
		for j, row := range table.Rows {
			c, err := table.row(row)
			if err != nil {
				return nil, fmt.Errorf("%s: tables[%d].rows[%d]: %w", name, i, j, err)
			}
			d.Cases = append(d.Cases, c)
		}
	}
	for i := range d.Cases {
		c := &d.Cases[i]
		c.Document = d
		if c.Profile == "" {
			c.Profile = Reference
		}
		if c.Domain == "" && len(d.Domains) > 0 {
			c.Domain = d.Domains[0].Domain
		}
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	return d, nil
}

// row returns the case with the columns of a row in place.
func (t Table) row(row map[string]string) (Case, error) {
	var pairs []string
	for column, value := range row {
		pairs = append(pairs, "{"+column+"}", value)
	}
	replacer := strings.NewReplacer(pairs...)
	var c Case
	node := copyNode(&t.Case, replacer)
	// Decode of a node does not check names of fields; so the text is read anew.
	text, err := yaml.Marshal(node)
	if err != nil {
		return c, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	return c, decoder.Decode(&c)
}

func copyNode(n *yaml.Node, replacer *strings.Replacer) *yaml.Node {
	c := *n
	if c.Kind == yaml.ScalarNode {
		if value := replacer.Replace(c.Value); value != c.Value {
			c.Value = value
			if c.Style == 0 {
				c.Tag = "" // a number in a column is a number
			}
		}
	}
	c.Content = nil
	for _, child := range n.Content {
		c.Content = append(c.Content, copyNode(child, replacer))
	}
	return &c
}
