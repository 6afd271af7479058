// What users of mpirun, accelerate, deepspeed and horovodrun type after `lockstep run`.
#include "lockstep/cli/run/habits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "lockstep/cli/run/command.h"
#include "lockstep/cli/run/working_directory.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::cli {
namespace habits_test {

using launch::CpuUnit;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// Eight cores on two sockets.
MachineFacts machine() {
  MachineFacts facts;
  facts.cpus = 8;
  facts.host_name = "here";
  for (int cpu = 0; cpu < 8; ++cpu)
    facts.processors.push_back({.cpu = cpu, .core = cpu, .numa = cpu / 4, .socket = cpu / 4});
  facts.env = [](std::string_view name) -> std::optional<std::string> {
    return name == "LOCKSTEP_SECRET" ? std::optional<std::string>("s") : std::nullopt;
  };
  return facts;
}

RunFlags flags_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return parse_run_flags(words, [](std::string_view) { return std::nullopt; });
}

launch::LaunchOptions plan(const std::string& flags) {
  return plan_run(flags_of(flags + " /bin/true"), machine()).options;
}

std::string error_of(const std::string& flags) {
  try {
    plan(flags);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line";
    return error.what();
  }
  return "no error";
}

// The hosts of other agents with their ranks, and this one's: "here=2 b=1".
std::string hosts_of(const std::string& flags) {
  const launch::LaunchOptions options = plan(flags);
  std::string text = "here=" + std::to_string(options.nproc);
  if (options.nodes)
    for (const launch::RemoteHost& remote : options.nodes->remotes)
      text += " " + remote.host + "=" + std::to_string(remote.ranks);
  return text;
}

TEST(Habits, RanksByEveryName) {
  for (const char* flags :
       {"-n 3", "-np 3", "--np 3", "--n 3", "-c 3", "--num-proc 3", "-n3", "--num_processes 3",
        "--num_gpus 3", "--num_gpus=3", "-ppn 3", "-N 3", "--npernode 3", "-npernode 3",
        "--map-by ppr:3:node", "--slots-per-host 3", "-perhost 3"})
    EXPECT_EQ(plan(flags).nproc, 3) << flags;
  EXPECT_EQ(error_of("-n 2 -np 3"),
            "--np=2 and --nproc-per-node=3 contradict each other; give one of them");
  EXPECT_EQ(plan("-n 2 -np 2").nproc, 2);
  EXPECT_EQ(plan("-np 2 -ppn 3").nproc, 2) << "fewer than the host may have";
  EXPECT_EQ(error_of("-np 4 -ppn 3"),
            "-np 4 contradicts --npernode=3, which gives this host 3 ranks");
  EXPECT_EQ(error_of("-ppn 3 --num_gpus 2"),
            "--npernode=3 and --num-gpus=2 contradict each other; give one of them");
  EXPECT_EQ(error_of("-ppn 0"), "--npernode is 0; give 1 or more");
}

TEST(Habits, AHostFileIsAHostList) {
  const TestDirectory folder;
  folder.write("hosts", "here slots=2\nb:1 # MPICH's\n");
  const std::string file = (folder.path() / "hosts").string();
  for (const char* flag : {"--hostfile ", "-hostfile ", "--machinefile ", "-machinefile ", "-f "})
    EXPECT_EQ(hosts_of(flag + file), "here=2 b=1") << flag;
  EXPECT_EQ(hosts_of("-np 2 --hostfile " + file), "here=2");
  EXPECT_EQ(hosts_of("-np 2 --map-by node --hostfile " + file), "here=1 b=1");
  EXPECT_EQ(error_of("-np 4 --hostfile " + file),
            "4 ranks do not fit --hostfile " + file +
                ", which has 3 slots; give its hosts more (HOST:SLOTS), start fewer ranks, or give "
                "--oversubscribe");
  EXPECT_EQ(hosts_of("-np 4 --oversubscribe --hostfile " + file), "here=3 b=1");
  EXPECT_EQ(hosts_of("-np 4 --map-by slot:OVERSUBSCRIBE --hostfile " + file), "here=3 b=1");
  EXPECT_EQ(hosts_of("--num_nodes 1 --hostfile " + file), "here=2");
  EXPECT_EQ(hosts_of("-ppn 1 --hostfile " + file), "here=1 b=1");
  EXPECT_THAT(error_of("-ppn 4 --hostfile " + file),
              HasSubstr("4 ranks on each host do not fit here, which has 2 slots"));
  EXPECT_THAT(error_of("--num_nodes 3 --hostfile " + file), HasSubstr("has 2 hosts"));
  EXPECT_EQ(error_of("-H a --hostfile " + file),
            "-H a and --hostfile=" + file + " both name the hosts; give one of them");
  EXPECT_EQ(error_of("-H " + file),
            "-H " + file + " is a file, and -H takes hosts; give --hostfile=" + file)
      << "deepspeed's -H";
  EXPECT_THAT(error_of("--hostfile /nowhere"), HasSubstr("--hostfile: cannot read /nowhere"));
  for (const char* flag : {"--host", "-host", "-H", "--hosts", "-hosts"})
    EXPECT_EQ(hosts_of(std::string(flag) + " here:2,b:2"), "here=2 b=2") << flag;
  EXPECT_EQ(hosts_of("-hosts here,b -ppn 2"), "here=2 b=2") << "MPICH's hosts have no slots";
}

TEST(Habits, DeepspeedsHostsAndGpus) {
  EXPECT_EQ(hosts_of("--include here:0,2"), "here=2");
  EXPECT_EQ(plan("--include here:0,2").env.at("CUDA_VISIBLE_DEVICES"), "0,2");
  EXPECT_EQ(hosts_of("-H here:4,b:4 --include here@b"), "here=4 b=4");
  EXPECT_FALSE(plan("-H here:4,b:4 --include here@b").env.contains("CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(hosts_of("-H here:4,b:4 --include here:1,3@b:1,3"), "here=2 b=2");
  EXPECT_EQ(plan("-H here:4,b:4 --exclude here:0@b:0").env.at("CUDA_VISIBLE_DEVICES"), "1,2,3");
  EXPECT_EQ(hosts_of("-H here:4,b:4 --exclude b"), "here=4");
  EXPECT_THAT(error_of("-H here:4,b:4 --include here:0@b:1"),
              HasSubstr("all ranks have one CUDA_VISIBLE_DEVICES; name the same on each host"));
  EXPECT_THAT(error_of("-H here:4 --include c"), HasSubstr("-H has no host c"));
  EXPECT_THAT(error_of("-H here:2 --include here:2"), HasSubstr("here has 2 slots"));
  EXPECT_THAT(error_of("--include here"), HasSubstr("needs the number of GPUs"));
  EXPECT_THAT(error_of("--exclude here:0"), HasSubstr("needs the hosts"));
  EXPECT_THAT(error_of("-H here --include here --exclude here"), HasSubstr("contradict"));
  EXPECT_THAT(error_of("--include here:x"), HasSubstr("'x' is no number of a GPU"));
  EXPECT_THAT(error_of("-H here:1 --exclude here"), HasSubstr("leaves no host"));
  EXPECT_EQ(plan("--num_gpus 2 --num_nodes 2 --node_rank 1 --master_addr a").nodes->nodes, 2);
  EXPECT_EQ(hosts_of("-H here:4,b:4 --num_gpus 2"), "here=2 b=2");
  EXPECT_THAT(error_of("--num_nodes 2 --nnodes 3"), HasSubstr("contradict each other"));
}

TEST(Habits, AcceleratesMachines) {
  const auto options = plan(
      "--num_processes 8 --num_machines 2 --machine_rank 1 --main_process_ip a "
      "--main_process_port 7 --num_cpu_threads_per_process 3 --gpu_ids 0,1 --multi_gpu "
      "--mixed_precision no --same_network");
  EXPECT_EQ(options.nproc, 4);
  EXPECT_EQ(options.nodes->nodes, 2);
  EXPECT_EQ(options.nodes->number, 1);
  EXPECT_EQ(options.nodes->endpoints.front().to_string(), "a:7");
  EXPECT_EQ(options.threads_per_rank, 3);
  EXPECT_EQ(options.env.at("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(options.env.at("LOCKSTEP_DEVICE"), "cuda");
  EXPECT_EQ(plan("--cpu").env.at("LOCKSTEP_DEVICE"), "cpu");
  EXPECT_FALSE(plan("--gpu_ids all").env.contains("CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(plan("--gpu_ids 0,2,3").nproc, 3) << "a rank for each";
  EXPECT_EQ(plan("--gpu_ids 0,2,3 -np 2").nproc, 2);
  EXPECT_EQ(flags_of("--multi_gpu x").device, "cuda");
  EXPECT_THAT(error_of("--num_processes 3 --num_machines 2 --machine_rank 0 --main_process_ip a"),
              HasSubstr("--num-processes=3 does not divide among --num-machines=2"));
  EXPECT_THAT(error_of("--num_processes 3 -np 3"), HasSubstr("contradict each other"));
  EXPECT_THAT(error_of("--mixed_precision bf16"), HasSubstr("lockstep train --amp bf16"));
  EXPECT_EQ(hosts_of("--num_processes 3 -H here:2,b:2"), "here=2 b=1");
}

TEST(Habits, Bindings) {
  const auto bound = [](const std::string& flags) { return plan(flags).binding; };
  EXPECT_FALSE(bound("-np 2").given);
  EXPECT_FALSE(plan("--bind-to none").pin);
  EXPECT_FALSE(bound("--bind-to none").given);
  EXPECT_EQ(bound("--bind-to core"), (launch::Binding{.given = true}));
  EXPECT_EQ(bound("-bind-to core:2 -np 4").cores, 2) << "MPICH's";
  EXPECT_TRUE(bound("--bind-to core:overload-allowed -np 9").overload);
  EXPECT_EQ(bound("--bind-to socket"),
            (launch::Binding{.given = true, .to = CpuUnit::kSocket, .by = CpuUnit::kSocket}))
      << "ranks are dealt to the sockets by turns";
  EXPECT_EQ(bound("--map-by ppr:2:socket").in_a_row, 2);
  EXPECT_THAT(error_of("--map-by core --bind-to hwthread -np 2"),
              HasSubstr("are dealt by --map-by=hwthread"));
  EXPECT_EQ(bound("--bind-to package:if-supported").to, CpuUnit::kSocket);
  EXPECT_FALSE(bound("--map-by slot -np 2").given) << "each has its share";
  EXPECT_FALSE(bound("--map-by node").given);
  EXPECT_EQ(bound("--map-by socket"),
            (launch::Binding{.given = true, .to = CpuUnit::kSocket, .by = CpuUnit::kSocket}));
  EXPECT_EQ(bound("--map-by socket --bind-to core"),
            (launch::Binding{.given = true, .to = CpuUnit::kCore, .by = CpuUnit::kSocket}));
  EXPECT_EQ(bound("-map-by slot:PE=4 -np 2"), (launch::Binding{.given = true, .cores = 4}));
  EXPECT_EQ(bound("--map-by socket:pe=2 -np 2"),
            (launch::Binding{.given = true, .by = CpuUnit::kSocket, .cores = 2}));
  EXPECT_EQ(plan("--map-by ppr:2:socket").nproc, 4);
  EXPECT_EQ(plan("--map-by ppr:1:core").nproc, 8);
  EXPECT_TRUE(plan("--report-bindings").report_bindings);
  EXPECT_EQ(error_of("--bind-to core -np 9"),
            "9 ranks with 1 core each do not fit this host, which allows 8 cores; start fewer "
            "ranks, or leave --bind-to and --map-by out");
  EXPECT_THAT(error_of("--bind-to l3cache"),
              HasSubstr("there are none, hwthread, core, numa and socket"));
  EXPECT_THAT(error_of("--bind-to core:x"), HasSubstr("'x' is not a number"));
  EXPECT_THAT(error_of("--map-by seq"), HasSubstr("there are slot, node, hwthread"));
  EXPECT_THAT(error_of("--map-by ppr:2"), HasSubstr("ppr:N:UNIT"));
  EXPECT_THAT(error_of("--map-by ppr:0:node"), HasSubstr("'0' is not a number of 1 or more"));
  EXPECT_THAT(error_of("--map-by slot:SPAN"), HasSubstr("there is no 'span'"));
  EXPECT_THAT(error_of("--map-by ppr:2:socket -H here:4,b:4"),
              HasSubstr("needs to know the processors of the other hosts"));
  EXPECT_THAT(error_of("--map-by slot:PE=2 --bind-to none"), HasSubstr("leave one of them out"));
  EXPECT_THAT(error_of("--no-pin --bind-to core"), HasSubstr("contradict each other"));
  for (const char* flag : {"--bind-to core", "--trace-dir t", "--stop-grace 9",
                           "--on-failure restart", "--allow-lost-logs"})
    EXPECT_THAT(error_of(std::string("--backend mpi ") + flag),
                HasSubstr("does not go with --backend mpi"));
}

TEST(Habits, TheRestOfMpirunsWords) {
  const RunFlags flags = flags_of(
      "--allow-run-as-root --oversubscribe --tag-output -wdir /tmp -x A=1 -x B --output-filename l "
      "-iface eth0 -n 2 /bin/true -n 9");
  EXPECT_TRUE(flags.oversubscribe && flags.tag_output);
  EXPECT_EQ(flags.working_directory, "/tmp");
  EXPECT_EQ(flags.output_filename, "l");
  EXPECT_EQ(flags.interface, "eth0");
  EXPECT_EQ(flags.nproc, "2");
  EXPECT_THAT(flags.program, ElementsAre("/bin/true", "-n", "9"));
  EXPECT_TRUE(flags_of("-l x").prefix);
  EXPECT_EQ(plan("--reset-limit 3").max_restarts, 3);
}

TEST(Habits, SeveralProgramsAreRolesOfOne) {
  EXPECT_THAT(error_of("-n 1 /bin/true : -n 2 /bin/false"),
              AllOf(StartsWith("':' starts several programs under mpirun"), HasSubstr("--role")));
  EXPECT_THAT(flags_of("-n 1 -- /bin/echo : b").program, ElementsAre("/bin/echo", ":", "b"))
      << "a ':' of the program's own";
}

TEST(Habits, EveryNamedFlagSaysWhatToDo) {
  for (const Flag& flag : named_flags()) {
    const std::string line = error_of(flag.name + " a b");
    EXPECT_EQ(line, flag.name + " " + flag.instead);
    EXPECT_THAT(line, testing::ContainsRegex("[;:,] ")) << "and what to use: " << line;
    EXPECT_THAT(error_of(flag.name + "=a"), StartsWith(flag.name)) << "also with '='";
  }
  EXPECT_THAT(error_of("--min-np 2"), HasSubstr("--nnodes MIN:MAX"));
  EXPECT_THAT(error_of("-npersocket 2"), HasSubstr("--map-by ppr:N:package"));
  EXPECT_THAT(error_of("-mca btl tcp"), StartsWith("-mca sets a parameter of Open MPI"));
  EXPECT_THAT(error_of("--host-discovery-script ./d.sh"), HasSubstr("--rdzv-endpoint"));
  EXPECT_THAT(error_of("--gloo -np 2"), HasSubstr("--backend gloo"));
  EXPECT_THAT(error_of("--ssh-port 22"), HasSubstr("--ssh-command \"ssh -p PORT\""));
}

// The names of other launchers must not take shortened flags from who uses torchrun.
TEST(Habits, ForeignNamesAreNotShortened) {
  EXPECT_EQ(flags_of("--nproc 2 x").nproc, "2");
  EXPECT_EQ(flags_of("--max 2 x").max_restarts, 2) << "in spite of --max-np";
  EXPECT_EQ(flags_of("--node 1 x").node_rank, 1) << "in spite of --npernode";
  EXPECT_THAT(message_of<UsageError>([] { flags_of("--num-pro 2 x"); }),
              HasSubstr("unknown flag --num-pro (did you mean --num-proc"));
  const auto env = [](std::string_view name) -> std::optional<std::string> {
    return name == "PET_NUM_GPUS" ? std::optional<std::string>("7") : std::nullopt;
  };
  EXPECT_FALSE(parse_run_flags({"x"}, env).gpus.has_value()) << "PET_* is torchrun's";
}

TEST(RunHabits, PathsAreRelativeToWhereTheyWereTyped) {
  const RunFlags flags = with_absolute_paths(
      flags_of("--wdir sub --hostfile hosts --log-dir ../logs --trace-dir /t "
               "--ssh-command ./ssh/myssh,x -x LOCKSTEP_LIBTORCH=torch -x OTHER=torch "
               "-x LOCKSTEP_SECRET_FILE --rdzv-conf "
               "cert=c.pem,key=/k.pem,join_timeout=5,password-file=./p /bin/true"),
      "/home/me");
  EXPECT_EQ(flags.working_directory, "sub");
  EXPECT_EQ(flags.host_file, "/home/me/hosts");
  EXPECT_EQ(flags.log_dir, "/home/logs");
  EXPECT_EQ(flags.output_filename, "");
  EXPECT_EQ(flags.trace_dir, "/t");
  EXPECT_EQ(flags.ssh_command, "/home/me/ssh/myssh,x");
  EXPECT_THAT(flags.forward, ElementsAre("LOCKSTEP_LIBTORCH=/home/me/torch", "OTHER=torch",
                                         "LOCKSTEP_SECRET_FILE"));
  EXPECT_EQ(flags.rdzv_conf,
            "cert=/home/me/c.pem,key=/k.pem,join_timeout=5,password-file=/home/me/p");

  const std::map<std::string, std::string> variables = {
      {"LOCKSTEP_SECRET_FILE", "secret"},   {"LOCKSTEP_LIBTORCH", "../torch"},
      {"LOCKSTEP_TRACE_DIR", "/traces"},    {"LOCKSTEP_MPI_LIBRARY", "libmpi.so.12"},
      {"LOCKSTEP_NCCL", "lib/libnccl.so"},  {"LOCKSTEP_MPIRUN", "mpirun.mpich"},
      {"LOCKSTEP_SSH", "./myssh -i a/key"}, {"LOCKSTEP_BACKEND", "a/b"}};
  const auto changed = absolute_variables(
      [&](std::string_view name) -> std::optional<std::string> {
        const auto found = variables.find(std::string(name));
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      "/home/me");
  EXPECT_THAT(changed, testing::UnorderedElementsAre(
                           testing::Pair("LOCKSTEP_SECRET_FILE", "/home/me/secret"),
                           testing::Pair("LOCKSTEP_LIBTORCH", "/home/torch"),
                           testing::Pair("LOCKSTEP_NCCL", "/home/me/lib/libnccl.so"),
                           testing::Pair("LOCKSTEP_SSH", "/home/me/myssh -i a/key")));
}

}  // namespace habits_test
}  // namespace lockstep::inline v0::cli
