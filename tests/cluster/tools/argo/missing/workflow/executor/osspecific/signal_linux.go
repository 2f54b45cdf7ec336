package osspecific

import (
	"os"
	"syscall"

	"github.com/argoproj/argo-workflows/v3/util/errors"
)

// What asks a process to end.
const Term = syscall.SIGTERM

// CanIgnoreSignal: the executor passes none of these on to the container's program.
func CanIgnoreSignal(signal os.Signal) bool {
	return signal == syscall.SIGCHLD || signal == syscall.SIGURG
}

// Setpgid puts the program that is started into a process group of its own.
func Setpgid(attributes *syscall.SysProcAttr) {
	attributes.Setpgid = true
}

// Kill signals a process and the group that it leads.
func Kill(pid int, signal syscall.Signal) error {
	if group, err := syscall.Getpgid(pid); err == nil {
		pid = -group
	}
	return syscall.Kill(pid, signal)
}

// Wait reaps every process of the container until the one is gone, and answers its exit code as
// a shell would.
func Wait(process *os.Process) error {
	pid := process.Pid
	if err := process.Release(); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		reaped, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case reaped == pid && status.Exited():
			return errors.NewExitErr(status.ExitStatus())
		case reaped == pid && status.Signaled():
			return errors.NewExitErr(128 + int(status.Signal()))
		}
	}
}
