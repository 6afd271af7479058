// The program that launch_mp_test starts: an agent ("run"), a program that spawns itself ("spawn")
// and a rank ("rank").
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/process_state.h"
#include "lockstep/core/secret.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::launch {
namespace {

// run [options] -- program arguments; nproc after role counts
int run(const std::vector<std::string>& words) {
  LaunchOptions options;
  size_t i = 0;
  const auto value = [&] { return words.at(++i); };
  for (; i < words.size() && words[i] != "--"; ++i) {
    if (words[i] == "nproc") {
      options.nproc = std::stoi(value());
    } else if (words[i] == "role") {
      options.roles.push_back(parse_role(value()));
      options.nproc = rank_count(options.roles);
    } else if (words[i] == "grace") {
      options.grace = std::chrono::milliseconds(std::stoi(value()));
    } else if (words[i] == "stop-grace") {
      options.stop_grace = std::chrono::milliseconds(std::stoi(value()));
    } else if (words[i] == "restarts") {
      options.max_restarts = std::stoi(value());
    } else if (words[i] == "spares") {
      options.on_failure = OnFailure::kReplace;
      options.spare_ranks = std::stoi(value());
    } else if (words[i] == "on-failure") {
      options.on_failure = parse_on_failure(value(), options.max_restarts);
    } else if (words[i] == "allow-lost-logs") {
      options.allow_lost_logs = true;
    } else if (words[i] == "prefix") {
      options.prefix = LinePrefix::kRank;
    } else if (words[i] == "log-dir") {
      options.log_dir = value();
    } else if (words[i] == "redirects") {
      options.redirects = parse_redirects(value());
    } else if (words[i] == "tee") {
      options.tee = parse_redirects(value());
    } else if (words[i] == "show") {
      options.show_ranks.insert(std::stoi(value()));
    } else if (words[i] == "port") {
      options.master_port = std::stoi(value());
    } else if (words[i] == "macro") {
      options.substitute_local_rank = true;
    } else {
      throw std::runtime_error("unknown word " + words[i]);
    }
  }
  options.command.assign(words.begin() + static_cast<std::ptrdiff_t>(std::min(words.size(), i + 1)),
                         words.end());
  return launch(options).exit_code;
}

// Meets the other ranks through the agent's store, then shows a call on the board and behaves as
// told.
int rank(const std::string& behaviour) {
  const JobEnvironment job = read_job_environment(process_env());
  TcpStore store(job.store.value(), Secret::from_env(process_env()).value(), Deadline::seconds(10));
  store_barrier(store, "start", job.world_size, Deadline::seconds(10));
  auto board = trace::CallBoard::inherit(process_env());
  if (!board) throw std::runtime_error("no board");
  trace::CallRecord record;
  record.sequence = 7;
  record.elements = 10;
  record.line = 3;
  std::strcpy(record.op, "all_reduce");
  std::strcpy(record.reduce, "sum");
  std::strcpy(record.dtype, "float32");
  std::strcpy(record.file, "train.cpp");
  board->enter(job.local_rank, static_cast<uint32_t>(::getpid()));
  if (job.rank == 1) store.set("pid", std::to_string(::getpid()));
  if (job.rank == 1 && behaviour == "stop-in-init")
    board->step(job.local_rank, "connecting to the others");
  else
    board->begin(job.local_rank, record);
  // "stop": rank 1 stands still, the others wait for it in vain. "stop-in-init": it has not called
  // anything yet. "stop-unnoticed": the others fail, but no communicator of theirs does.
  if (behaviour.starts_with("stop")) {
    if (job.rank == 1) {
      store.set("stops", "now");
      ::raise(SIGSTOP);
    }
    store.get("stops", Deadline::seconds(10));
    const int pid = static_cast<int>(parse_int(store.get("pid", Deadline::seconds(10)), 1).value());
    const Deadline deadline = Deadline::seconds(10);
    while (process_state(pid) != 'T' && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (behaviour != "stop-unnoticed") board->give_up(job.local_rank, -1);
    std::fprintf(stderr, "rank %d waited in vain\n", job.rank);
    return 1;
  }
  if (behaviour == "meet") {
    std::printf("rank %d met %d\n", job.rank, job.world_size);
    return 0;
  }
  // "die": rank 1 is killed; "die3": rank 3
  if (behaviour == (job.rank == 1 ? "die" : "die" + std::to_string(job.rank))) {
    std::fprintf(stderr, "rank %d goes\n", job.rank);
    ::raise(SIGKILL);
  }
  std::printf("pid %d of rank %d\n", static_cast<int>(::getpid()), job.rank);
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(60));
  return 0;
}

// The server of one role dies in its first life, before it has served the others, which wait for it
// in the store.
int play_role() {
  const JobEnvironment job = read_job_environment(process_env());
  const JobRole role = job_role();
  TcpStore store(job.store.value(), Secret::from_env(process_env()).value(), Deadline::seconds(10));
  if (role.name == "ps") {
    const int64_t life = store.add("lives", 1) - 1;
    if (life != job.own_restarts) throw std::runtime_error("another life");
    if (life == 0) ::raise(SIGKILL);
    store.set("served", std::to_string(life));
    return 0;
  }
  std::printf("%s %d was served by life %s of rank %d\n", role.name.c_str(), role.rank,
              store.get("served", Deadline::seconds(30)).c_str(), role.ranks_of("ps").first);
  return 0;
}

// A rank that may be a spare at first. It reports its start, also in a file of the folder, because
// a spare's output is not read, and ends when the folder has a file "end". "slow": it waits before
// it asks which rank it is. "brief": it then ends at once.
int spare_rank(const std::string& folder, const std::string& behaviour) {
  const int pid = static_cast<int>(::getpid());
  std::printf("pid %d has begun\n", pid);
  std::fflush(stdout);
  if (behaviour == "slow") std::this_thread::sleep_for(std::chrono::seconds(2));
  std::ofstream(folder + "/" + std::to_string(pid)).flush();
  const JobEnvironment job = job_environment();
  std::string cpus;
  for (const int cpu : allowed_cpus()) cpus += " " + std::to_string(cpu);
  std::printf("rank %d life %d is pid %d on%s, error file %s\n", job.rank,
              job.own_restarts.value_or(-1), pid, cpus.c_str(),
              process_env()("TORCHELASTIC_ERROR_FILE").value_or("").c_str());
  std::fflush(stdout);
  std::fprintf(stderr, "pid %d has a rank\n", pid);
  const Deadline deadline = Deadline::seconds(100);
  while (behaviour != "brief" && !std::filesystem::exists(folder + "/end") && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return deadline.expired() ? 1 : 0;
}

// Rank 1 stands still in its first life. The others have given up waiting for it as a communicator
// does, and then wait for its next life; "impatient": they end instead, and wait in their own next
// life.
int outwait(const std::string& behaviour) {
  const JobEnvironment job = read_job_environment(process_env());
  TcpStore store(job.store.value(), Secret::from_env(process_env()).value(), Deadline::seconds(10));
  auto board = trace::CallBoard::inherit(process_env());
  if (!board) throw std::runtime_error("no board");
  board->enter(job.local_rank, static_cast<uint32_t>(::getpid()));
  const int64_t life = job.own_restarts.value_or(-1);
  if (job.rank == 1 && life == 0) {
    store.set("stops", std::to_string(::getpid()));
    ::raise(SIGSTOP);
    return 3;
  }
  if (job.rank == 1) store.set("is back", "yes");
  if (life == 0) {
    const std::string text = store.get("stops", Deadline::seconds(30));
    const int pid = static_cast<int>(parse_int(text, 1).value());
    const Deadline deadline = Deadline::seconds(30);
    // It may have been killed for it already.
    const auto runs = [pid] {
      const char state = process_state(pid);
      return state != '\0' && state != 'T' && state != 'Z';
    };
    while (runs() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    board->give_up(job.local_rank, 1);
    if (behaviour == "impatient") return 1;
  }
  store.get("is back", Deadline::seconds(60));
  std::printf("rank %d life %d\n", job.rank, static_cast<int>(life));
  return 0;
}

// A rank that has seen that all ranks have done their last step, and has something left to do until
// the folder has a file "end".
int past_the_end(const std::string& folder) {
  const JobEnvironment job = read_job_environment(process_env());
  auto board = trace::CallBoard::inherit(process_env());
  if (!board) throw std::runtime_error("no board");
  board->enter(job.local_rank, static_cast<uint32_t>(::getpid()));
  board->set_presence(job.local_rank, trace::CallBoard::Presence::kAllFinished);
  std::printf("rank %d is past the end\n", job.rank);
  std::fflush(stdout);
  const Deadline deadline = Deadline::seconds(100);
  while (!std::filesystem::exists(folder + "/end") && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return deadline.expired() ? 1 : 0;
}

int spawn_as_told(const std::string& behaviour) {
  if (behaviour == "nested") {
    return spawn(2, [] { spawn(2, [] {}); }).exit_code;
  }
  if (behaviour == "fork") {
    const int parent = ::getpid();
    const auto tell = [parent] {
      const bool fork = ::getpid() != parent && ::getppid() == parent && in_spawned_child();
      std::printf("rank %d is %s\n", read_job_environment(process_env()).rank,
                  fork ? "a fork" : "none");
      if (::getpid() != parent && std::getenv("RANK") == std::string("1"))
        throw std::runtime_error("rank 1 is unhappy");
    };
    const int code = spawn(2, tell, {}, {.by_fork = true}).exit_code;
    std::printf("the parent goes on\n");
    return code;
  }
  const LaunchResult first = spawn(2, [] {
    const JobEnvironment job = read_job_environment(process_env());
    if (!in_spawned_child()) throw std::runtime_error("not in a child");
    std::printf("first call, rank %d of %d\n", job.rank, job.world_size);
  });
  if (first.exit_code != 0 || (behaviour == "once")) return first.exit_code;
  const LaunchResult second = spawn(3, [&] {
    const JobEnvironment job = read_job_environment(process_env());
    if (behaviour == "throw" && job.rank == 2) throw std::runtime_error("rank 2 is unhappy");
    if (behaviour == "exit2" && job.rank == 1) std::exit(2);
    std::printf("second call, rank %d of %d\n", job.rank, job.world_size);
  });
  if (in_spawned_child()) return 99;  // never reached in a child
  return second.exit_code;
}

int main_of_test(const std::vector<std::string>& words) {
  if (words.size() > 1 && words[0] == "run") return run({words.begin() + 1, words.end()});
  if (words.size() == 2 && words[0] == "rank") return rank(words[1]);
  if (words.size() == 3 && words[0] == "spare-rank") return spare_rank(words[1], words[2]);
  if (words.size() == 2 && words[0] == "outwait") return outwait(words[1]);
  if (words.size() == 2 && words[0] == "past-the-end") return past_the_end(words[1]);
  if (words.size() == 1 && words[0] == "role") return play_role();
  if (words.size() == 2 && words[0] == "spawn") return spawn_as_told(words[1]);
  return 64;
}

}  // namespace
}  // namespace lockstep::inline v0::launch

int main(int argc, char** argv) {
  try {
    return lockstep::launch::main_of_test({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 65;
  }
}
