#include "lockstep/launch/mpirun.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::inline v0::launch {
namespace {

Variables as_root() {
  return {
      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},  // for version 4; PRTE: for version 5
      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
      {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
  };
}

// Whether nothing will ever be read from it: a pipe that is empty and has no writer, or /dev/null.
bool is_without_input(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  if (::poll(&waiting, 1, 0) == 1 && (waiting.revents & POLLIN) == 0) return true;
  struct stat given{}, null{};
  return ::fstat(fd, &given) == 0 && ::stat("/dev/null", &null) == 0 && S_ISCHR(given.st_mode) &&
         given.st_rdev == null.st_rdev;
}

// The beginning of the output of `file --version`.
std::string version_text(const std::string& file) {
  const UniqueFd memory(::memfd_create("lockstep-mpirun-version", MFD_CLOEXEC));
  if (!memory) throw system_error("memfd_create for mpirun's version", errno);
  SubprocessOptions options;
  options.command = {file, "--version"};
  options.program = file;
  options.env = merge_environment(current_environment(), as_root());
  options.stdout_fd = options.stderr_fd = memory.get();
  Subprocess(options).wait(Deadline::seconds(30));
  std::array<char, 4096> text{};
  const ssize_t n = ::pread(memory.get(), text.data(), text.size(), 0);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(n, 0))};
}

}  // namespace

Mpirun find_mpirun(const EnvLookup& env) {
  const auto chosen = env("LOCKSTEP_MPIRUN");
  Mpirun mpirun{.name = chosen.value_or("mpirun")};
  try {
    mpirun.file = find_program(mpirun.name);
  } catch (const LaunchError& error) {
    if (chosen) throw LaunchError("LOCKSTEP_MPIRUN=" + *chosen + ": " + error.what());
    throw LaunchError(
        "mpirun is not on PATH; install Open MPI or MPICH (Debian, Ubuntu: apt install "
        "openmpi-bin, or apt install mpich)");
  }
  const auto family = family_of_version(version_text(mpirun.file));
  if (!family) {
    throw LaunchError(mpirun.file +
                      " is neither Open MPI's mpirun nor one of MPICH's family; "
                      "LOCKSTEP_MPIRUN names another one");
  }
  mpirun.family = *family;
  return mpirun;
}

std::optional<Mpirun> find_mpirun_of(MpiFamily family) {
  const bool open_mpi = family == MpiFamily::kOpenMpi;
  for (const char* name : {open_mpi ? "mpirun.openmpi" : "mpirun.mpich", "mpirun"}) {
    try {
      Mpirun mpirun = find_mpirun([&](std::string_view) { return std::optional(name); });
      if (mpirun.family == family) return mpirun;
    } catch (const LaunchError&) {
      continue;
    }
  }
  return std::nullopt;
}

SubprocessOptions mpirun_process(const Mpirun& mpirun, const MpirunJob& job) {
  const bool open_mpi = mpirun.family == MpiFamily::kOpenMpi;
  SubprocessOptions options;
  options.program = mpirun.file;
  options.own_session = false;
  options.command = {mpirun.name, "-n", std::to_string(job.nproc)};
  const auto add = [&](const std::vector<std::string>& words) {
    options.command.insert(options.command.end(), words.begin(), words.end());
  };
  if (open_mpi) add({"--oversubscribe", "--bind-to", "none"});
  if (job.tag_lines) add({open_mpi ? "--tag-output" : "-prepend-rank"});
  add(job.flags);
  if (job.no_input) add({"/bin/sh", "-c", "exec \"$@\" </dev/null", "sh"});
  add(job.command);

  Variables variables = as_root();
  variables["OMPI_MCA_mpi_yield_when_idle"] = job.nproc > usable_cpu_count() ? "1" : "0";
  variables["I_MPI_PIN"] = "0";  // Intel MPI binds its ranks by default
  variables["OMP_NUM_THREADS"] = process_env()("OMP_NUM_THREADS").value_or("1");
  for (const char* name :
       {"LOCKSTEP_STORE", "LOCKSTEP_SECRET_FD", "LOCKSTEP_SPAWN_CALL", "RANK", "WORLD_SIZE",
        "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMI_FD",
        "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}) {
    variables[name] = "";
  }
  for (const auto& [name, value] : job.env) variables[name] = value;
  options.env = merge_environment(current_environment(), variables);
  return options;
}

UniqueFd silent_stdin() {
  UniqueFd silent(::eventfd(0, EFD_CLOEXEC));
  if (!silent) throw system_error("cannot make a stdin for mpirun", errno);
  return silent;
}

ExitStatus run_mpirun(const Mpirun& mpirun, MpirunJob job) {
  job.no_input = job.no_input || is_without_input(STDIN_FILENO);
  SubprocessOptions options = mpirun_process(mpirun, job);
  UniqueFd silent;
  if (job.no_input) {
    silent = silent_stdin();
    options.stdin_fd = silent.get();
  }
  return Subprocess(options).wait(Deadline::after(Deadline::Duration::max()));
}

}  // namespace lockstep::inline v0::launch
