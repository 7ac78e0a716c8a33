// The first process of the machine that emulate.sh boots: runs the one program
// there is and says how it ended.
#include <cstdio>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

int main() {
  const pid_t child = fork();
  if (child == 0) {
    execl("/instruction_sets", "instruction_sets", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("exit status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  std::fflush(stdout);
  sleep(1);
  reboot(RB_HALT_SYSTEM);
}
