package descriptors

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// UsageKey is the key of the entry with the tokens of a request, see [ParseUsage]. A descriptor of
// a rule with holders may have this entry behind the entries of the rule, before the holder. A
// descriptor of a rule with prices must have it.
const UsageKey = "usage"

// NoUsage is the value of the entry of [UsageKey] for a request that used nothing.
const NoUsage = "0/0/0/0/"

// Micros is the number of hits of a limit with a budget in one unit of money.
const Micros = 1_000_000

// Usage is the tokens of a request to a language model.
type Usage struct {
	Input   uint64 // all tokens of the input, with Cached and Written
	Cached  uint64 // of the input: read from a cache
	Written uint64 // of the input: written to a cache
	Output  uint64
	Model   string
}

// ParseUsage decodes a usage: four whole numbers and the model, with a / behind each number. The
// model may have a / too. An error names the wrong number, without the text itself.
//
//	1000/640/0/250/openai/gpt-5
func ParseUsage(text string) (u Usage, err error) {
	at := 0
	for i, to := range [...]*uint64{&u.Input, &u.Cached, &u.Written, &u.Output} {
		n, begin := uint64(0), at
		for at < len(text) && text[at]-'0' <= 9 && n < 1<<53 {
			n = 10*n + uint64(text[at]-'0')
			at++
		}
		if at == begin || at == len(text) || text[at] != '/' || n >= 1<<53 {
			return Usage{}, fmt.Errorf("%s tokens: must be a whole number below 2^53 with a / behind it, as in 1000/640/0/250/gpt-5",
				[...]string{"input", "cached input", "cache write", "output"}[i])
		}
		*to = n
		at++
	}
	if u.Model = text[at:]; u.Cached+u.Written > u.Input {
		return Usage{}, fmt.Errorf("input tokens: %d, must be at least the cached input and the cache write together, which are %d",
			u.Input, u.Cached+u.Written)
	}
	return u, nil
}

// Unused reports whether the request has no tokens.
func (u *Usage) Unused() bool { return u.Input|u.Output == 0 }

// prices is the prices of models.
type prices struct {
	models map[string]*price
	lines  map[string]int // by model, while the table is read
}

// price is the prices of a million tokens, in millionths of a unit of money: input, cached input,
// cache write, output.
type price [4]uint64

// otherModels is the name of the line for models without a line of their own.
const otherModels = "*"

func priceColumns() []string {
	return []string{"model", "input", "cached_input", "cache_write", "output"}
}

// cost returns the price of a usage in millionths, rounded up, at most algorithms.MaxHits.
func (p *price) cost(u *Usage) int64 {
	plain := u.Input - u.Cached - u.Written
	if u.Input|u.Output < 1<<20 { // the sum is below 2^20 * 2^40 * 2
		return int64(min((plain*p[0]+u.Cached*p[1]+u.Written*p[2]+u.Output*p[3]+Micros-1)/Micros, algorithms.MaxHits))
	}
	var high, low uint64
	for i, tokens := range [...]uint64{plain, u.Cached, u.Written, u.Output} {
		h, l := bits.Mul64(tokens, p[i]) // below 2^53 * 2^40
		var carry uint64
		low, carry = bits.Add64(low, l, 0)
		high += h + carry
	}
	low, carry := bits.Add64(low, Micros-1, 0)
	if high += carry; high >= Micros {
		return algorithms.MaxHits
	}
	micros, _ := bits.Div64(high, low, Micros)
	return int64(min(micros, algorithms.MaxHits))
}

// PriceTable returns the table of prices of the limit, nil without one.
func (l *Limit) PriceTable() *Table { return l.priced }

// UnknownModels returns the choice for models without a price, as in rule files: deny or default.
func (l *Limit) UnknownModels() string {
	if l.others {
		return "default"
	}
	return "deny"
}

// Prices reports whether the hits of the limit are prices, see [Limit.Cost].
func (l *Limit) Prices() bool { return l.priced != nil }

// Cost returns the price of a usage in millionths of a unit of money, rounded up, at most
// algorithms.MaxHits. known is false if the limit has no price for the model. A usage without
// tokens costs 0 with any model. The limit must have prices.
func (l *Limit) Cost(u *Usage) (micros int64, known bool) {
	if u.Unused() {
		return 0, true
	}
	p := l.priceOf(u.Model)
	if p == nil {
		return 0, false
	}
	return p.cost(u), true
}

// HasPrice reports whether the limit has a price for a model. The limit must have prices.
func (l *Limit) HasPrice(model string) bool { return l.priceOf(model) != nil }

func (l *Limit) priceOf(model string) *price {
	p := l.priced.prices.models[model]
	if p == nil && l.others {
		p = l.priced.prices.models[otherModels]
	}
	return p
}

// price reads a line of a table of prices.
func (t *Table) price(fields []string, line int) {
	names := priceColumns()
	if len(fields) != len(names) {
		t.fail(line, "", "has %d columns, must be %s", len(fields), strings.Join(names, ","))
		return
	}
	before := len(t.mistakes)
	model := fields[0]
	if model != otherModels {
		t.value(names[0], model, line)
	}
	if first, again := t.prices.lines[model]; again {
		t.fail(line, names[0], "%s is given twice, first in line %d", quote(model), first)
	}
	var p price
	for i := range p {
		text := strings.TrimSpace(fields[i+1])
		n, ok := micros(text)
		switch {
		case text == "":
			t.fail(line, names[i+1], "is empty, must be the price of a million tokens, such as 1.25; 0 is free")
		case !ok || n > maxPrice*Micros:
			t.fail(line, names[i+1], "is %s, must be a price from 0 to %d with at most six decimals, such as 1.25", quote(text), maxPrice)
		}
		p[i] = n
	}
	if len(t.mistakes) == before {
		model = strings.Clone(model)
		t.prices.models[model], t.prices.lines[model] = &p, line
	}
}

// maxPrice bounds the price of a million tokens, in units of money.
const maxPrice = 1_000_000

// micros decodes a decimal number with at most six decimals, in millionths. ok is false for any
// other text, and above 2^63 millionths.
func micros(text string) (n uint64, ok bool) {
	whole, part, dotted := strings.Cut(text, ".")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	if !digits(whole) || dotted && !digits(part) || len(part) > 6 {
		return 0, false
	}
	n, err := strconv.ParseUint(whole+part+strings.Repeat("0", 6-len(part)), 10, 63)
	return n, err == nil
}

// Money writes millionths of a unit of money as a decimal number with two decimals or more.
func Money(micros uint64) string {
	text := fmt.Sprintf("%d.%06d", micros/Micros, micros%Micros)
	for strings.HasSuffix(text, "0") && len(text)-strings.IndexByte(text, '.') > 3 {
		text = text[:len(text)-1]
	}
	return text
}

// pricesOf begins a table of prices if its first line has the names of such a table.
func (t *Table) pricesOf(fields []string, line int) bool {
	names := priceColumns()
	if len(fields) < 2 || strings.TrimSpace(fields[0]) != names[0] || strings.TrimSpace(fields[1]) != names[1] {
		return false
	}
	t.prices = &prices{models: make(map[string]*price), lines: make(map[string]int)}
	for i, name := range fields {
		if i >= len(names) || strings.TrimSpace(name) != names[i] || len(fields) != len(names) {
			t.fail(line, "", "is the line of names of a table of prices, must be %s", strings.Join(names, ","))
			break
		}
	}
	return true
}

// meaning identifies the prices, in any order of lines.
func (p *prices) meaning() (sum meaning) {
	var text []byte
	for model, price := range p.models {
		text = text[:0]
		for _, n := range price {
			text = binary.AppendUvarint(text, n)
		}
		sum.add(append(text, model...))
	}
	return sum
}

// readBudget decodes the budget of a limit, which stands in place of requests_per_unit.
func (t *tree) readBudget(at value, fs fields, l *Limit) {
	if other, both := fs.get("requests_per_unit"); both {
		t.fail(other, "stands beside budget: must be one of the two")
	}
	most, why := uint64(algorithms.MaxCount), ""
	if l.Algorithm != 0 && !l.Algorithm.HasWindows() {
		most, why = l.Algorithm.MostPerPeriod(), fmt.Sprintf(" for %s: more needs fixed_window", l.Algorithm)
	}
	var amount uint64
	amount, l.Money = t.amount(at, most, why)
	l.SetPerPeriod(amount)
}

// decimal decodes the text of a number with decimals.
func (t *tree) decimal(at value) (text string, ok bool) {
	if at.node.Kind == yaml.ScalarNode && at.node.ShortTag() == "!!float" && !t.beyond(at) {
		return at.node.Value, true
	}
	return t.text(at)
}

// amount decodes an amount of money, in millionths. why says the reason for the largest one.
func (t *tree) amount(at value, most uint64, why string) (micro uint64, ok bool) {
	text, ok := t.decimal(at)
	if !ok {
		return 0, false
	}
	n, ok := micros(text)
	switch {
	case !ok:
		t.fail(at, "is %s, must be an amount of money with at most six decimals, such as 25 or 0.50", quote(text))
	case n > most:
		t.fail(at, "is %s, must be at most %s%s", quote(text), Money(most), why)
	default:
		return n, true
	}
	return 0, false
}

// readPrices decodes the prices of a limit, after its budget and its hold.
func (t *tree) readPrices(fs fields, l *limit) {
	at, given := fs.get("prices")
	if !given {
		return
	}
	if !fs.has("budget") {
		t.fail(at, "is for a limit with a budget: must stand beside budget")
	}
	if !fs.has("hold") {
		t.fail(at, "is for a limit with a hold, as the price is known at the end: must stand beside hold")
	}
	in, ok := t.fields(at, pricesForm)
	if !ok {
		return
	}
	name, tableAt, ok := t.textOf(in, at, "table")
	if !ok {
		return
	}
	if name == "" {
		t.fail(tableAt, "is missing, must be the name of a file of prices that ends in .csv")
		return
	}
	unknown, unknownAt, ok := t.textOf(in, at, "unknown")
	if ok && unknown != "deny" && unknown != "default" {
		t.fail(unknownAt, "is %s, must be deny or default: the price of a model without a line", quote(unknown))
	}
	table := t.tableOf(tableAt, name, ".csv")
	if table == nil {
		return
	}
	if table.prices == nil {
		if len(table.mistakes) == 0 {
			t.fail(tableAt, "%s is no table of prices: the first line must be %s", table.file, strings.Join(priceColumns(), ","))
		}
		return
	}
	_, hasOthers := table.prices.models[otherModels]
	switch {
	case len(table.mistakes) > 0:
	case unknown == "default" && !hasOthers:
		t.fail(unknownAt, "is default, and %s has no line for the model *: must have one, or unknown must be deny", table.file)
	case unknown == "deny" && hasOthers:
		t.fail(unknownAt, "is deny, and %s has a line for the model *: must be default, or the table must not have that line", table.file)
	}
	l.priced, l.others = table, unknown == "default"
}
