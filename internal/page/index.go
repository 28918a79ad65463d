package page

import (
	"net/http"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// index is the page itself.
func (p *Page) index(w http.ResponseWriter, r *http.Request) {
	rules, err := p.options.Service.ListRules(r.Context(), &adminv1.ListRulesRequest{})
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	p.render(w, http.StatusOK, "index.html", map[string]any{"Rules": rules, "Version": p.options.Version, "Login": p.options.Token != nil})
}
