package model

// mustPass are the cases that a service passes which answers each request alike.
func mustPass() map[string][]string {
	return map[string][]string{}
}

// neverFail are the cases that no mutant fails, each with the reason.
func neverFail() []string {
	return nil
}
