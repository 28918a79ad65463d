package lane

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

func unhex(tb testing.TB, text string) []byte {
	tb.Helper()
	b := must.Get(hex.DecodeString(strings.ReplaceAll(text, " ", "")))(tb)
	return b
}

// lines returns decoded fields as text.
func lines(list []field) []string {
	var all []string
	for _, f := range list {
		all = append(all, fmt.Sprintf("%s: %s", f.name, f.value))
	}
	return all
}

// table returns the dynamic table of a decoder, the newest field first.
func (d *decoder) table() []string {
	var all []field
	for i := uint64(staticFields + 1); d.at(i) != nil; i++ {
		all = append(all, *d.at(i))
	}
	return lines(all)
}

// The examples of RFC 7541, appendix C.3, C.4 and C.6: requests without and with Huffman's code,
// and responses that evict.
func TestHeaderBlocksOfTheRFC(t *testing.T) {
	requests := [][]string{
		{":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"},
		{":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com", "cache-control: no-cache"},
		{":method: GET", ":scheme: https", ":path: /index.html", ":authority: www.example.com", "custom-key: custom-value"},
	}
	table := []string{"custom-key: custom-value", "cache-control: no-cache", ":authority: www.example.com"}
	responses := [][]string{
		{":status: 302", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com"},
		{":status: 307", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com"},
		{
			":status: 200", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:22 GMT", "location: https://www.example.com",
			"content-encoding: gzip", "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
		},
	}
	for _, row := range []struct {
		name   string
		bound  int
		blocks []string
		want   [][]string
		table  []string
		size   int
	}{
		{
			"C.3 raw", 4096,
			[]string{
				"8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", "8286 84be 5808 6e6f 2d63 6163 6865",
				"8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
			},
			requests, table, 164,
		},
		{
			"C.4 Huffman", 4096,
			[]string{
				"8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", "8286 84be 5886 a8eb 1064 9cbf",
				"8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
			},
			requests, table, 164,
		},
		{
			"C.6 eviction", 256,
			[]string{
				"4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
				"4883 640e ffc1 c0bf",
				"88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
			},
			responses,
			[]string{
				"set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1", "content-encoding: gzip",
				"date: Mon, 21 Oct 2013 20:13:22 GMT",
			},
			215,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			d, to := decoder{tables: newTables(), bound: row.bound}, new(fields)
			for i, block := range row.blocks {
				to.reset(1 << 20)
				must.Do(t, d.decode(unhex(t, block), to))
				if diff := cmp.Diff(row.want[i], lines(to.list)); diff != "" {
					t.Error(diff)
				}
			}
			if diff := cmp.Diff(row.table, d.table()); diff != "" {
				t.Error(diff)
			}
			if d.size != row.size {
				t.Errorf("the table has %d bytes, want %d", d.size, row.size)
			}
		})
	}
}

func TestWrongHeaderBlocksAreErrors(t *testing.T) {
	for _, row := range []struct {
		name, block string
		want        error
	}{
		{"index 0", "80", errIndex},
		{"index behind the tables", "be", errIndex},
		{"name behind the tables", "7e 00", errIndex},
		{"integer without end", "ff ff ff", errInteger},
		{"integer above 63 bits", "ff ff ff ff ff ff ff ff ff ff ff 01", errInteger},
		{"no value", "00 01 61", errText},
		{"value cut off", "00 01 61 02 62", errText},
		{"Huffman with EOS", "00 01 61 84 ff ff ff ff", errText},
		{"Huffman with padding of a byte", "00 01 61 82 1f ff", errText},
		{"Huffman with padding of zeros", "00 01 61 81 18", errText},
		{"table size above the setting", "3f e2 1f", errTableSize},
		{"table size behind a field", "82 20", errTableSize},
	} {
		d := decoder{tables: newTables(), bound: maxTable}
		if err := d.decode(unhex(t, row.block), new(fields)); !errors.Is(err, row.want) {
			t.Errorf("%s: got %v, want %v", row.name, err, row.want)
		}
	}
}

func TestAHeaderListThatIsTooLargeStillFillsTheTable(t *testing.T) {
	d, to := decoder{tables: newTables(), bound: maxTable}, new(fields)
	to.reset(100)
	c := newClient(t)
	must.Do(t, d.decode(c.block("first", "1", "second", "2", "third", "3", "large", strings.Repeat("x", 500)), to))
	if !to.over || len(to.list) != 2 {
		t.Errorf("got %d fields, over %v, want 2 fields of 38 and 39 bytes", len(to.list), to.over)
	}
	to.reset(1 << 20)
	must.Do(t, d.decode(c.block("third", "3", "first", "1"), to))
	if diff := cmp.Diff([]string{"third: 3", "first: 1"}, lines(to.list)); diff != "" {
		t.Error(diff)
	}
}

// Decoders of two implementations get the same random requests: the fields, and so the tables, must
// agree.
func TestRandomRequestsDecodeAsInTheOtherImplementation(t *testing.T) {
	compared := 0
	for seed := range seeds(t, uint64(race.Scale(50))) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := newClient(t)
		other, d, to := hpack.NewDecoder(maxTable, nil), decoder{tables: newTables(), bound: maxTable}, new(fields)
		for range 100 {
			if r.IntN(10) == 0 {
				c.coder.SetMaxDynamicTableSize(uint32(r.IntN(maxTable)))
			}
			var pairs []string
			for range r.IntN(12) {
				name := []string{":path", "content-type", "grpc-timeout", "x-request-id", "traceparent", fmt.Sprint("x-", r.IntN(50))}[r.IntN(6)]
				value := make([]byte, r.IntN([]int{3, 30, 3000}[r.IntN(3)]))
				for i := range value {
					value[i] = byte(r.IntN(256))
				}
				pairs = append(pairs, name, []string{"a", "application/grpc", string(value)}[r.IntN(3)])
			}
			block := c.block(pairs...)
			if !compare(t, other, &d, to, block) {
				break
			}
			compared++
		}
	}
	if compared < race.Scale(1000) {
		t.Errorf("only %d blocks were compared", compared)
	}
}

// compare decodes a block with both decoders, and reports whether it is a header block.
func compare(tb testing.TB, other *hpack.Decoder, d *decoder, to *fields, block []byte) bool {
	tb.Helper()
	to.reset(1 << 30)
	want, wantErr := other.DecodeFull(block)
	err := d.decode(block, to)
	if (err == nil) != (wantErr == nil) {
		// RFC 7541, section 4.2, allows two size updates, and none behind a field. The other decoder
		// refuses the second one unless its table is empty, and takes any one while it is.
		if errors.Is(err, errTableSize) || err == nil && strings.Contains(wantErr.Error(), "size update MUST occur at the beginning") {
			return false
		}
		tb.Fatalf("block %x: got error %v, want %v", block, err, wantErr)
	}
	if err != nil {
		return false
	}
	var all []string
	for _, f := range want {
		all = append(all, fmt.Sprintf("%s: %s", f.Name, f.Value))
	}
	if diff := cmp.Diff(all, lines(to.list)); diff != "" {
		tb.Fatalf("block %x: %s", block, diff)
	}
	if d.size > d.bound || d.bound > maxTable {
		tb.Fatalf("the table has %d bytes of %d", d.size, d.bound)
	}
	return true
}

func FuzzHeaderBlocks(f *testing.F) {
	c := newClient(f)
	first := c.block(usual()...)
	f.Add(first, c.block(usual("grpc-timeout", "1S", "x-more", "yes")...))
	f.Add([]byte{0x3f, 0xe1, 0x1f, 0x82}, []byte{0x20, 0x40, 1, 'a', 1, 'b', 0xbe})
	tables := newTables()
	f.Fuzz(func(t *testing.T, first, second []byte) {
		other, d, to := hpack.NewDecoder(maxTable, nil), decoder{tables: tables, bound: maxTable}, new(fields)
		_ = compare(t, other, &d, to, first) && compare(t, other, &d, to, second)
	})
}

func FuzzHuffman(f *testing.F) {
	f.Add([]byte("www.example.com"))
	f.Add(hpack.AppendHuffmanString(nil, "\x00\xff|~{}<\\"))
	tables := newTables()
	f.Fuzz(func(t *testing.T, text []byte) {
		want, err := hpack.HuffmanDecodeToString(text)
		if got, ok := tables.huffman.decode(nil, text); ok != (err == nil) || ok && string(got) != want {
			t.Errorf("%x: got %q, %v, want %q, %v", text, got, ok, want, err)
		}
		coded := hpack.AppendHuffmanString(nil, string(text))
		if got, ok := tables.huffman.decode(nil, coded); !ok || !bytes.Equal(got, text) {
			t.Errorf("%q: got %q, %v", text, got, ok)
		}
	})
}
