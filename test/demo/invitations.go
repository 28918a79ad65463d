package main

import (
	"cmp"
	"embed"
	"fmt"
)

// invitations are the texts with requests to try, by the name of the example. The numbers come from
// the rules of the example.
//
//go:embed invitations/*.txt
var invitations embed.FS

// invitationTo returns the text of an example; "" is the example in deploy itself.
func invitationTo(example string) (string, error) {
	text, err := invitations.ReadFile("invitations/" + cmp.Or(example, "edge") + ".txt")
	if err != nil {
		return "", fmt.Errorf("there is no example %q, only llm, concurrency and rlqs", example)
	}
	return string(text), nil
}
