// Package certificates keeps a certificate, its key and the authorities to trust as files have them: the files are read again
// when they change, and what is wrong leaves in force what was right before.
//
// A change is what the files contain, whatever became of them: written over, renamed, or behind a symbolic link that was
// turned, as Kubernetes does with a Secret. It is put in force as one, once two looks in a row have seen the same, so that a
// certificate and a key of different times are no pair and no mistake.
package certificates

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
)

// File is one of the files. The zero value is none.
type File struct {
	Name string // what messages call it, such as the setting that names it
	Path string // "" is none
}

// Files are a certificate with those that lead from it to its authority, the key of it, and the authorities to trust, all PEM.
// Certificate and key are there together, or neither is.
type Files struct {
	Certificate, Key, Authorities File
}

// Set is what the files hold. It does not change.
type Set struct {
	Certificate *tls.Certificate // with its leaf; nil when Files has none
	Authorities *x509.CertPool   // these and no others; nil when Files has none
}

// contents is what was read.
type contents struct {
	certificate, key, authorities []byte
	errs                          []error
}

// fingerprint stands for contents.
type fingerprint [sha256.Size]byte

// read reads the files.
func (f *Files) read() contents {
	var c contents
	for _, one := range []struct {
		file File
		to   *[]byte
	}{{f.Certificate, &c.certificate}, {f.Key, &c.key}, {f.Authorities, &c.authorities}} {
		if one.file.Path == "" {
			continue
		}
		data, err := readRegular(one.file.Path)
		if err != nil {
			c.errs = append(c.errs, fmt.Errorf("%s: %w", one.file.Name, err))
		}
		*one.to = data
	}
	return c
}

// readRegular reads a file that has an end.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is no file", path)
	}
	return os.ReadFile(path)
}

// fingerprint returns what other contents do not have.
func (c *contents) fingerprint() fingerprint {
	h := sha256.New()
	for _, data := range [][]byte{c.certificate, c.key, c.authorities} {
		fmt.Fprintln(h, len(data)) // a hash cannot fail
		_, _ = h.Write(data)
	}
	for _, err := range c.errs {
		fmt.Fprintln(h, err)
	}
	return fingerprint(h.Sum(nil))
}

// parse makes a set of contents, or says everything that is wrong with them.
func (f *Files) parse(c contents) (*Set, error) {
	errs := c.errs
	switch {
	case f.Certificate.Path == "" && f.Key.Path != "":
		errs = append(errs, fmt.Errorf("%s: has no certificate: %s must name it", f.Key.Name, f.Certificate.Name))
	case f.Certificate.Path != "" && f.Key.Path == "":
		errs = append(errs, fmt.Errorf("%s: has no key: %s must name it", f.Certificate.Name, f.Key.Name))
	}
	set := new(Set)
	if c.certificate != nil && c.key != nil {
		pair, err := tls.X509KeyPair(c.certificate, c.key)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, %s: %s and %s: %s", f.Certificate.Name, f.Key.Name,
				f.Certificate.Path, f.Key.Path, strings.TrimPrefix(err.Error(), "tls: ")))
		}
		set.Certificate = &pair
	}
	if c.authorities != nil {
		var err error
		if set.Authorities, err = pool(c.authorities); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", f.Authorities.Name, f.Authorities.Path, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return set, nil
}

// pool reads certificates, one at least. Unlike [x509.CertPool.AppendCertsFromPEM] it passes over none that it cannot read.
func pool(data []byte) (*x509.CertPool, error) {
	all, n := x509.NewCertPool(), 0
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		n++
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %s", n, strings.TrimPrefix(err.Error(), "x509: "))
		}
		all.AddCert(certificate)
	}
	if n == 0 {
		return nil, errors.New("holds no certificate: must be PEM")
	}
	return all, nil
}
