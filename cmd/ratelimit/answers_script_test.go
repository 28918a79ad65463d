package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

// A script is a file of testdata/answers: cases, each of which is a program of its own that is
// asked something. Lines are
//
//	env NAME=VALUE …            what the program is started with: before the first case for all of
//	                            them
//	rules [FILE]                a rule file, whose lines follow behind bars: the program's, or, after
//	                            a request, the one it finds next
//	push                        what a control plane has from now on: configurations in the text
//	                            format of protobuf, with --- between them
//	case TITLE                  begins a case; the title starts with the section of the reference
//	                            whose row it is
//	differs TABLE: ROW          the case shows that row of a table of docs/migrating-differences.md
//	store NAME …                on which alone it is played: memory, and Redis with the keys of
//	                            ratelimit or of weir
//	ask REQUEST                 a request in the form of parseRequest
//	send TEXT                   a request in the text format of protobuf
//	page METHOD SERVER PATH [BODY]
//	health SERVICE STATUS       what gRPC health says of a service, "" being the server
//	exit TEXT                   the program does not start, and says so
//
// A bar continues the line above it. What comes of it stands below:
//
//	= TEXT                      of the answer, in the text format of protobuf; <YEAR> is the seconds
//	                            until the year's window ends
//	! TEXT                      of the error, a google.rpc.Status
//	< TEXT                      of a page: its code and type on the first line, then its lines
//	+ NAME N                    a counter has grown, and those not named have not. A request of gRPC
//	                            is one of total_requests.
type script struct {
	name  string
	begin beginning // of all cases
	cases []*scriptCase
}

type scriptCase struct {
	title   string
	begin   beginning // after that of the script; its files, when there are any, in place of the script's
	differs []string
	stores  []string // that it is played on; none: on all
	steps   []*step
}

type beginning struct {
	env   []string
	files map[string]string
}

type step struct {
	verb, text string
	block      []string
	line       int

	answer, fault []string
	page          []string
	counters      map[string]uint64
}

func readScripts(t *testing.T) []*script {
	t.Helper()
	names, err := filepath.Glob("testdata/answers/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	var all []*script
	titles := make(map[string]bool)
	for _, name := range names {
		text := must.Get(os.ReadFile(name))(t)
		r := scriptReader{script: &script{name: strings.TrimSuffix(filepath.Base(name), ".txt")}}
		for i, line := range strings.Split(string(text), "\n") {
			if err := r.read(strings.TrimSpace(line), i+1); err != nil {
				t.Fatalf("%s:%d: %q: %v", name, i+1, line, err)
			}
		}
		for _, c := range r.script.cases {
			if !section.MatchString(c.title) || titles[c.title] || len(c.steps) == 0 {
				t.Fatalf("%s: %q must begin with a section, be there once, and do something", name, c.title)
			}
			titles[c.title] = true
		}
		all = append(all, r.script)
	}
	return all
}

var section = regexp.MustCompile(`^[12]\.[1-9] `)

type scriptReader struct {
	script *script
	now    *scriptCase       // that is being read; nil before the first
	step   *step             // likewise
	into   func(line string) // what a bar continues
}

func (r *scriptReader) read(line string, number int) error {
	if line == "" || line[0] == '#' {
		return nil
	}
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch word {
	case "|":
		if r.into == nil {
			return errors.New("continues nothing")
		}
		r.into(strings.TrimPrefix(strings.TrimPrefix(line, "|"), " "))
		return nil
	case "case":
		r.now = &scriptCase{title: rest}
		r.script.cases = append(r.script.cases, r.now)
		r.step, r.into = nil, nil
		return nil
	case "=", "!", "<", "+":
		return r.outcome(word, rest)
	case "env":
		if r.step != nil {
			return errors.New("the program runs already")
		}
		to := r.starting()
		to.env = append(to.env, strings.Fields(rest)...)
		return nil
	case "rules":
		if r.step == nil {
			r.file(rest)
			return nil
		}
	}
	if r.now == nil {
		return errors.New("belongs to no case")
	}
	switch word {
	case "differs":
		r.now.differs = append(r.now.differs, rest)
	case "store":
		r.now.stores = strings.Fields(rest)
	case "rules", "push", "ask", "send", "page", "health", "exit":
		s := &step{verb: word, text: rest, line: number, counters: make(map[string]uint64)}
		r.step, r.into = s, func(line string) { s.block = append(s.block, line) }
		r.now.steps = append(r.now.steps, s)
	default:
		return fmt.Errorf("unknown word %s", word)
	}
	return nil
}

func (r *scriptReader) outcome(word, rest string) error {
	s := r.step
	if s == nil {
		return errors.New("nothing was done")
	}
	switch word {
	case "=":
		s.answer = append(s.answer, rest)
	case "!":
		s.fault = append(s.fault, rest)
	case "<":
		s.page = append(s.page, rest)
	default:
		name, number, _ := strings.Cut(rest, " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return err
		}
		if s.counters[name] != 0 {
			return errors.New("is there twice")
		}
		s.counters[name] = n
	}
	return nil
}

// starting returns what the lines before the first step are about: the case, or all cases.
func (r *scriptReader) starting() *beginning {
	if r.now == nil {
		return &r.script.begin
	}
	return &r.now.begin
}

func (r *scriptReader) file(name string) {
	to := r.starting()
	if to.files == nil {
		to.files = make(map[string]string)
	}
	r.into = func(line string) { to.files[cmp.Or(name, ruleFile)] += line + "\n" }
}

// ruleFile is the name of a rule file that a script does not name.
const ruleFile = "rules.yaml"
