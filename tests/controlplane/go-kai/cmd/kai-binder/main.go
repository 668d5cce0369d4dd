// Command kai-binder is the stock binder of KAI-Scheduler, with all its flags and plugins.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/NVIDIA/KAI-scheduler/cmd/binder/app"
	"github.com/NVIDIA/KAI-scheduler/pkg/binder/plugins"
	"github.com/NVIDIA/KAI-scheduler/pkg/binder/plugins/gpusharing"
	k8splugins "github.com/NVIDIA/KAI-scheduler/pkg/binder/plugins/k8s-plugins"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kai-binder:", err)
		os.Exit(1)
	}
}

func run() error {
	options := app.InitOptions(nil)
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	pflag.CommandLine.AddGoFlagSet(flag.CommandLine)
	pflag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))

	binder, err := app.New(options, ctrl.GetConfigOrDie())
	if err != nil {
		return err
	}
	kubernetes, err := k8splugins.New(
		binder.K8sInterface, binder.InformerFactory, int64(options.VolumeBindingTimeoutSeconds))
	if err != nil {
		return err
	}
	registered := plugins.New()
	registered.RegisterPlugin(kubernetes)
	registered.RegisterPlugin(gpusharing.New(binder.Client, options.GpuCdiEnabled))
	binder.RegisterPlugins(registered)
	return binder.Run(ctrl.SetupSignalHandler())
}
