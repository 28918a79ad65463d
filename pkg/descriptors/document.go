package descriptors

import (
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// document is a decoded document.
type document struct {
	*Domain
	path string // of its domain
}

// defaults holds the defaults of a document for all its limits.
type defaults struct {
	algorithm     algorithms.Algorithm // 0 after a mistake
	countRejected *bool                // nil: the algorithm decides
	onStoreError  OnStoreError
	sharing       Sharing
}

// tree builds the domain of one document.
type tree struct {
	*reader
	domain   *Domain
	defaults defaults
	names    map[string]bool // of limits
	replaces []replaced      // must be among names
	rule     *Rule           // of the limits that are read
}

// replaced is a name in a list of replaces.
type replaced struct {
	name string
	at   value
}

// document decodes a document; false when it does not name its domain.
func (r *reader) document(v value) (document, bool) {
	switch kind := kubernetesKind(v.node); kind {
	case "":
	case "ConfigMap", "Secret":
		r.fail(v, "the document is a Kubernetes %s: give the files in its data, or mount it and give the directory", kind)
		return document{}, false
	default:
		r.fail(v, "the document is a Kubernetes %s, must be a rule file: a mapping with the key domain", clip(kind))
		return document{}, false
	}
	if isCases(v.node) {
		r.fail(v, "the document holds tests for sidecar test, must be in another directory than rules")
		return document{}, false
	}
	fs, ok := r.fields(v, documentForm)
	if !ok {
		return document{}, false
	}
	t := &tree{reader: r, domain: &Domain{File: r.file}, names: make(map[string]bool)}
	t.defaults.algorithm = algorithms.FixedWindow
	name, at, ok := t.textOf(fs, v, "domain")
	t.domain.Name, t.domain.Line = name, at.line
	t.merge()
	r.trees = append(r.trees, t)
	if ok && t.domain.Name == "" {
		r.fail(at, "is missing or empty, must be the name of the domain, as Envoy sends it")
	}
	t.checkBlanks(at, t.domain.Name)
	if d, ok := fs.get("defaults"); ok {
		t.readDefaults(d)
	}
	t.descriptors(fs, &t.domain.root)
	if d, ok := fs.get("default"); ok {
		t.readDefault(d)
	}
	return document{t.domain, at.place.String()}, t.domain.Name != ""
}

func isCases(n *yaml.Node) bool {
	found := 0
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if key := n.Content[i].Value; key == "rules" || key == "tests" {
			found++
		}
	}
	return found == 2
}

// kubernetesKind returns the kind of a Kubernetes object, such as the ConfigMap around rule files.
func kubernetesKind(n *yaml.Node) string {
	values := make(map[string]string)
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		values[n.Content[i].Value] = n.Content[i+1].Value
	}
	if _, ok := values["apiVersion"]; !ok {
		return ""
	}
	return values["kind"]
}

// merge joins the document with earlier ones of its domain, with Options.MergeDomains.
func (t *tree) merge() {
	switch first := t.merged[t.domain.Name]; {
	case !t.options.MergeDomains || t.domain.Name == "":
	case first != nil:
		t.domain, t.names = first.domain, first.names
	default:
		t.merged[t.domain.Name] = t
	}
}

func (t *tree) readDefaults(v value) {
	fs, _ := t.fields(v, defaultsForm)
	if a, ok := fs.get("algorithm"); ok {
		t.defaults.algorithm = t.algorithm(a)
	}
	if c, ok := fs.get("count_rejected"); ok {
		is := t.countRejected(c)
		t.defaults.countRejected = &is
	}
	t.defaults.onStoreError = choice(t, fs, "on_store_error", OnStoreErrorDeny, "local, allow or deny")
	t.defaults.sharing = choice(t, fs, "sharing", SharingDivided, sharings)
}

// readDefault decodes the limit of descriptors that match nothing.
func (t *tree) readDefault(v value) {
	if first := t.domain.Default; first != nil {
		t.fail(v, "the domain has a default already, at %s: it can have one", position(first.File, first.Line))
		return
	}
	rule := &Rule{Domain: t.domain.Name, Path: "default", File: t.file, Line: v.line}
	t.rule = rule
	if l, ok := t.limit(v, defaultForm); ok {
		t.setLimits(rule, []limit{l})
	}
	t.domain.Default = rule
	t.domain.rules = append(t.domain.rules, rule)
}

// textOf returns the text of a key in the map v, and the position of the text. Without the key, the
// text is "". The last result is false when the value is no text.
func (t *tree) textOf(fs fields, v value, key string) (text string, at value, ok bool) {
	at, given := fs.get(key)
	if !given {
		return "", v.under(key), true
	}
	text, ok = t.text(at)
	return text, at, ok
}

// flag returns a boolean of a map, false when the map does not have the key.
func (t *tree) flag(fs fields, key string) bool {
	v, ok := fs.get(key)
	return ok && t.boolean(v)
}
