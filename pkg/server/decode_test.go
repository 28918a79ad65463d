package server

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// generated reads a request with generated code and convert. decode must agree.
func generated(data []byte) (*limiter.Request, error) {
	message, r := new(ratelimitv3.RateLimitRequest), new(limiter.Request)
	if err := proto.Unmarshal(data, message); err != nil {
		return nil, err
	}
	convert(message, r)
	return r, nil
}

// agree fails unless decode, into a used request, and generated code read the same.
func agree(t *testing.T, data []byte) {
	t.Helper()
	want, wantErr := generated(data)
	got := usedRequest()
	gotErr := decode(data, string(data), got)
	if (gotErr != nil) != (wantErr != nil) {
		t.Fatalf("decode(%x): got error %v; want one as generated code: %v", data, gotErr, wantErr)
	}
	if gotErr != nil {
		return
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("decode(%x) (-want +got):\n%s", data, diff)
	}
}

// usedRequest returns a request that was full, and was reset.
func usedRequest() *limiter.Request {
	r := &limiter.Request{Domain: "old", Hits: 9}
	for range 3 {
		d := r.Add()
		d.Entries = append(d.Entries, descriptors.Entry{Key: "old", Value: "old"}, descriptors.Entry{Key: "old"})
		d.Hits, d.Probe, d.Refund = 9, true, true
		d.Override = &limiter.Override{Requests: 9, Unit: 9, Multiplier: 9}
	}
	r.Reset()
	return r
}

// bytesField returns a field of wire type bytes.
func bytesField(number protowire.Number, parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), all)
}

// varintField returns a field of wire type varint.
func varintField(number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value)
}

func join(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// messages are requests, well formed and not, that show each way in which bytes can be odd.
func messages() map[string][]byte {
	entry := bytesField(1, bytesField(1, []byte("k")), bytesField(2, []byte("v")))
	full, err := proto.Marshal(&ratelimitv3.RateLimitRequest{
		Domain: "edge", HitsAddend: 1<<32 - 1,
		Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries:        []*commonv3.RateLimitDescriptor_Entry{{Key: "a", Value: "b"}, {Key: "c"}},
			HitsAddend:     wrapperspb.UInt64(1<<64 - 1),
			IsNegativeHits: true,
			Limit: &commonv3.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: 7, Unit: typev3.RateLimitUnit_DAY, UnitMultiplier: wrapperspb.UInt32(3),
			},
		}, {}, {HitsAddend: wrapperspb.UInt64(0)}},
	})
	if err != nil {
		full = nil
	}
	group := func(number protowire.Number, inner []byte) []byte {
		return protowire.AppendTag(append(protowire.AppendTag(nil, number, protowire.StartGroupType), inner...), number, protowire.EndGroupType)
	}
	return map[string][]byte{
		"empty":                     {},
		"full":                      full,
		"last_domain_counts":        join(bytesField(1, []byte("a")), bytesField(1, []byte("b"))),
		"last_hits_count":           join(varintField(3, 7), varintField(3, 0)),
		"hits_truncated_to_32_bits": varintField(3, 1<<40|5),
		"negative_unit":             bytesField(2, bytesField(2, varintField(2, 1<<64-1))),
		"bool_of_any_number":        bytesField(2, varintField(4, 1<<40)),
		"override_merged": bytesField(2,
			bytesField(2, varintField(1, 5), varintField(2, 3), bytesField(3, varintField(1, 8))),
			bytesField(2, varintField(2, 4), bytesField(3))),
		"hits_merged":               bytesField(2, bytesField(3, varintField(1, 5)), bytesField(3)),
		"hits_of_last":              bytesField(2, bytesField(3, varintField(1, 5)), bytesField(3, varintField(1, 0))),
		"multiplier_of_64_bits":     bytesField(2, bytesField(2, bytesField(3, varintField(1, 1<<33|2)))),
		"unknown_fields":            join(bytesField(99, []byte("x")), varintField(4, 1), bytesField(2, entry, varintField(77, 3)), group(12, varintField(1, 1))),
		"fixed_fields":              join([]byte{0x0d, 1, 2, 3, 4}, []byte{0x11, 1, 2, 3, 4, 5, 6, 7, 8}, entry),
		"fixed_field_cut_off":       {0x0d, 1, 2, 3},
		"domain_as_varint":          varintField(1, 7),
		"descriptor_as_varint":      varintField(2, 7),
		"descriptor_as_group":       group(2, entry),
		"hits_as_bytes":             bytesField(3, []byte{1, 2, 3}),
		"hits_as_fixed":             {0x1d, 1, 2, 3, 4},
		"group_not_ended":           {0x63, 0x08, 0x01},
		"group_ended_by_another":    {0x63, 0x6c},
		"end_of_no_group":           {0x0c},
		"nested_groups":             group(5, group(6, group(7, varintField(1, 1)))),
		"reserved_wire_type":        {0x0e},
		"field_zero":                {0x02, 0x00},
		"largest_field_number":      varintField(protowire.MaxValidNumber, 1),
		"field_number_too_large":    append(protowire.AppendVarint(nil, (1<<29)<<3), 1),
		"tag_of_many_bytes":         {0x8a, 0x80, 0x80, 0x80, 0x00, 0x01, 'x'},
		"tag_overflows":             {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"tag_cut_off":               {0x8a},
		"varint_cut_off":            {0x18, 0x80},
		"varint_too_long":           {0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		"length_beyond_the_end":     {0x0a, 0x05, 'a'},
		"length_overflows":          {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		"inner_beyond_its_message":  {0x12, 0x03, 0x0a, 0x02, 0x0a, 0x01, 'k'},
		"inner_into_the_next_field": {0x12, 0x02, 0x0a, 0x02, 0x18, 0x05},
		"domain_not_utf8":           bytesField(1, []byte("\xff")),
		"key_not_utf8":              bytesField(2, bytesField(1, bytesField(1, []byte("\xc3\x28")))),
		"value_not_utf8":            bytesField(2, bytesField(1, bytesField(2, []byte("\xed\xa0\x80")))),
		"not_utf8_before_the_last":  join(bytesField(1, []byte("\xff")), bytesField(1, []byte("a"))),
		"not_utf8_unknown":          bytesField(9, []byte("\xff")),
	}
}

func TestDecodeAgreesWithGeneratedCode(t *testing.T) {
	once(t)
	for name, data := range messages() {
		t.Run(name, func(t *testing.T) { agree(t, data) })
	}
	t.Run("random", func(t *testing.T) {
		r := rand.New(rand.NewPCG(9, 10))
		for range race.Scale(3000) {
			agree(t, randomMessage(t, r))
		}
	})
	t.Run("every_cut", func(t *testing.T) {
		full := messages()["full"]
		for n := range full {
			agree(t, full[:n])
		}
	})
}

func TestDecodedTextsOutliveTheBytes(t *testing.T) {
	once(t)
	data := bytesField(1, []byte("edge"))
	var r limiter.Request
	must.Do(t, decode(data, string(data), &r))
	clear(data)
	if r.Domain != "edge" {
		t.Errorf("domain after the bytes changed: got %q; want edge", r.Domain)
	}
}

func TestDecodeSaysWhere(t *testing.T) {
	once(t)
	data := bytesField(2, bytesField(1), bytesField(1, bytesField(1, []byte("\xff"))))
	err := decode(data, string(data), new(limiter.Request))
	if want := "descriptors[0]: entries[1]: key: invalid UTF-8"; err == nil || err.Error() != want {
		t.Errorf("decode: got %v; want %s", err, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, data := range messages() {
		f.Add(data)
	}
	f.Fuzz(agree)
}

func TestALargeMessageOfNothingTakesLittleMemory(t *testing.T) {
	once(t)
	for name, data := range map[string][]byte{
		"descriptors": bytes.Repeat(bytesField(2), 2<<20),
		"entries":     bytesField(2, bytes.Repeat(bytesField(1), 2<<20)),
	} {
		var r limiter.Request
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := decode(data, string(data), &r)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.HasSuffix(err.Error(), name+": more than 65536 in one request") {
			t.Errorf("%s: got %v; want an error that says how many may be", name, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 40<<20 {
			t.Errorf("%s: decoding %d bytes took %d bytes of memory; want at most 40 MiB", name, len(data), got)
		}
	}
}

// gRPC's pool would take a buffer of a MiB for an answer of reflection. Clients that reset many of
// them made 100 MiB of buffers.
func TestALargeAnswerTakesNoBufferOfTheNextSize(t *testing.T) {
	once(t)
	for _, size := range []int{100, wire.MaxPooled - 100, wire.MaxPooled, 70_000, 2 << 20} {
		message := wrapperspb.Bytes(bytes.Repeat([]byte("x"), size))
		got, err := newCodec().Marshal(message)
		if err != nil || len(got) != 1 {
			t.Fatalf("%d bytes: got %d buffers, %v", size, len(got), err)
		}
		slice, alone := got[0].(mem.SliceBuffer)
		if large := size >= wire.MaxPooled; large && (!alone || cap(slice) > size+size/4) {
			t.Errorf("%d bytes: got a buffer of the pool, or of %d bytes", size, cap(slice))
		}
		back := new(wrapperspb.BytesValue)
		if err := newCodec().Unmarshal(got, back); err != nil || !bytes.Equal(back.Value, message.Value) {
			t.Errorf("%d bytes: read back %d bytes, %v", size, len(back.Value), err)
		}
		got.Free()
	}
}

func TestOnlyModestCallsAreKept(t *testing.T) {
	once(t)
	for name, row := range map[string]struct {
		message []byte
		want    bool
	}{
		"usual":                  {benchMessage(), true},
		"long_value":             {bytesField(1, make([]byte, 100_000)), false},
		"many_empty_descriptors": {bytes.Repeat(bytesField(2), 2000), false},
		"many_empty_entries":     {bytesField(2, bytes.Repeat(bytesField(1), 32_000)), false},
	} {
		var c call
		c.decode(row.message, time.Now())
		if got := c.modest(); got != row.want {
			t.Errorf("%s: a call of %d bytes is kept: got %v; want %v", name, c.size, got, row.want)
		}
	}
}

// convert turns a message into r, which must be empty, as decode does with the bytes of the
// message.
func convert(message *ratelimitv3.RateLimitRequest, r *limiter.Request) {
	r.Domain, r.Hits = message.GetDomain(), message.GetHitsAddend()
	for _, from := range message.GetDescriptors() {
		to := r.Add()
		to.Refund = from.GetIsNegativeHits()
		for _, e := range from.GetEntries() {
			to.Entries = append(to.Entries, limiter.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if hits := from.GetHitsAddend(); hits != nil {
			to.Hits, to.Probe = hits.GetValue(), hits.GetValue() == 0
		}
		if o := from.GetLimit(); o != nil {
			to.Override = &limiter.Override{Requests: o.GetRequestsPerUnit(), Unit: descriptors.Unit(o.GetUnit())}
			if m := o.GetUnitMultiplier(); m != nil {
				if to.Override.Multiplier = m.GetValue(); m.GetValue() == 0 {
					to.Override.Multiplier = zeroMultiplier
				}
			}
		}
	}
}
