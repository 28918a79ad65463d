package server

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/admin/render"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// rules is the page /rules. Rules are written one by one: as a whole they may take a large part of
// the memory of a small container.
func (s *Server) rules(w http.ResponseWriter, _ *http.Request) {
	now := s.options.loads()
	head, err := indented(&adminv1.RulesPage{
		Sources:     s.options.Sources,
		Hash:        now.Hash,
		LoadedAt:    timestamp(now.LoadedAt),
		AttemptedAt: timestamp(now.AttemptedAt),
		Loads:       uint32(now.Loads),
		Refusals:    uint32(now.Refusals),
		Errors:      now.Errors,
		Warnings:    now.Warnings,
	}, "")
	if err != nil {
		text(w, http.StatusInternalServerError, textPanic)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// The list of rules is the last field.
	head, _ = bytes.CutSuffix(head, []byte("]\n}"))
	_, err = w.Write(head)
	between, end := "\n    ", "]\n}\n"
	for _, r := range s.options.Limiter.Rules().All() {
		var rule []byte
		if err == nil {
			rule, err = indented(render.Rule(r), "    ")
		}
		if err != nil {
			return // the client is gone
		}
		_, _ = io.WriteString(w, between)
		_, err = w.Write(rule)
		between, end = ",\n    ", "\n  ]\n}\n"
	}
	_, _ = io.WriteString(w, end)
}

// indented returns a message as JSON with every field. Every line but the first begins with the
// prefix.
func indented(m proto.Message, prefix string) ([]byte, error) {
	line, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var lines bytes.Buffer // protojson varies the space between tokens
	err = json.Indent(&lines, line, prefix, "  ")
	return lines.Bytes(), err
}

// timestamp returns nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
