// Bom writes a software bill of materials of programs: the modules that the Go linker has recorded
// in each binary.
//
//	bom [-version VERSION] PROGRAM…
//
// The bill of bin/sidecar is bin/sidecar.bom.json, in the JSON form of CycloneDX. The same binary
// gives the same bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("bom", flag.ContinueOnError)
	version := flags.String("version", "", "version of the programs, by default the version of their module")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("no program given: want bom [-version VERSION] PROGRAM…")
	}
	for _, program := range flags.Args() {
		if err := write(program, *version); err != nil {
			return err
		}
	}
	return nil
}

// write puts the bill of the binary at the path program beside it. The error of a file that Go has
// not built names the file.
func write(program, version string) (err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("reading the modules of %s: %w", program, err)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	bill, err := billOf(filepath.Base(program), version, info, sha256.Sum256(content))
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	file, err := os.Create(program + ".bom.json")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bill, cyclonedx.SpecVersion1_6)
}
