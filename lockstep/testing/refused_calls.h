// System calls that a sandbox, an old kernel or a file system refuses, for tests of what then happens.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace lockstep::inline v0::testing {

struct RefusedCall {
  long number;  // SYS_...
  int errnum;   // what it fails with
};

// Symbolic links, as on exFAT or SMB.
inline std::vector<RefusedCall> refused_links(int errnum) {
  std::vector<RefusedCall> calls{{SYS_symlinkat, errnum}};
#ifdef SYS_symlink
  calls.push_back({SYS_symlink, errnum});
#endif
  return calls;
}

inline std::vector<RefusedCall> refused_renames(int errnum) {
  std::vector<RefusedCall> calls{{SYS_renameat2, errnum}, {SYS_renameat, errnum}};
#ifdef SYS_rename
  calls.push_back({SYS_rename, errnum});
#endif
  return calls;
}

// Runs `work` on a thread of its own, and those that it starts, whose calls are refused. False, and nothing is run,
// where this process may not install such a filter.
inline bool with_refused(const std::vector<RefusedCall>& calls, const std::function<void()>& work) {
  bool installed = false;
  std::thread([&] {
    std::vector<sock_filter> code{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offsetof(seccomp_data, nr)))};
    for (const RefusedCall& call : calls) {
      code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call.number), 0, 1));
      code.push_back(
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(call.errnum)));
    }
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
    installed = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    if (installed) work();
  }).join();
  return installed;
}

}  // namespace lockstep::inline v0::testing
