package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/render"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// rules is the page /rules.
func (s *Server) rules(w http.ResponseWriter, _ *http.Request) {
	now := s.options.loads()
	page := &adminv1.RulesPage{
		Sources:     s.options.Sources,
		Hash:        now.Hash,
		LoadedAt:    timestamp(now.LoadedAt),
		AttemptedAt: timestamp(now.AttemptedAt),
		Loads:       uint32(now.Loads),
		Refusals:    uint32(now.Refusals),
		Errors:      now.Errors,
		Warnings:    now.Warnings,
	}
	for _, r := range s.options.Limiter.Rules().All() {
		page.Rules = append(page.Rules, render.Rule(r))
	}
	answer, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(page)
	if err != nil {
		text(w, http.StatusInternalServerError, textPanic)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	var indented bytes.Buffer // protojson varies the space between tokens
	_ = json.Indent(&indented, answer, "", "  ")
	indented.WriteByte('\n')
	_, _ = w.Write(indented.Bytes()) // fails when the client is gone
}

// timestamp returns nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
