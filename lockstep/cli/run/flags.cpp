#include "lockstep/cli/run/flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "lockstep/cli/flag_syntax.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/run/habits.h"
#include "lockstep/cli/usage.h"

namespace lockstep::inline v0::cli {
namespace {

// This is the one list of the flags: CLI11 gets their types and help, and `flags` what flag_syntax
// needs.
class RunParser {
 public:
  explicit RunParser(RunFlags& flags)
      : app_(
            "Starts a program on several ranks, on this host or on several, and says which failed "
            "first and "
            "why.",
            "lockstep run") {
    app_.set_help_flag();
    app_.footer(
        "Flags may be written with '-' or '_', and shortened where that is unambiguous (other\n"
        "launchers' names are not shortened). torchrun's\n"
        "--local-addr, --monitor-interval, --start-method and --event-log-handler are accepted "
        "and\n"
        "change nothing; the rendezvous flags change nothing on one host.\n"
        "Programs that end in .py run with python3 (or $PYTHON_EXEC), others by themselves.\n"
        "Exit code: 0; 2 for a wrong flag, or when the first rank to fail exited with 2; 1 when a\n"
        "rank failed otherwise; 128 + n after signal n.");
    add_example(app_, {"lockstep run --nproc-per-node 2 build/train --epochs 3"});
    app_.option_defaults()->group("Ranks");
    value("--nproc-per-node", "-np", flags.nproc,
          "Ranks on this host, also -np N: a number, auto, cpu or gpu", "N");
    value("--threads", "", flags.threads, "OMP_NUM_THREADS, if not the processors / ranks", "N");
    list("--role", "", roles_,
         "Ranks that do different work, numbered in this order (may be repeated): COUNT of them, "
         "each started again alone N times at most if it fails; a service is stopped after the "
         "others have ended. NAME alone: ROLE_NAME of all ranks",
         "NAME=COUNT[,restarts=N][,service]");
    flag("--no-pin", "", flags.no_pin, "Do not give each rank its share of the processors");
    value("--bind-to", "", flags.bind_to,
          "What a rank gets instead of its share: a core (core:N: N cores), a hwthread, all "
          "processors of a numa node or socket, or none: not bound; :overload-allowed where ranks "
          "may share cores",
          "UNIT");
    value(
        "--map-by", "", flags.map_by,
        "How ranks take cores and hosts: slot, core or hwthread in order, numa or socket by turns, "
        "node: hosts by turns, ppr:N:node|socket|...: N ranks on each; :PE=N: N cores a rank",
        "UNIT");
    flag("--report-bindings", "", flags.report_bindings, "Say which processors each rank has");
    value("--max-restarts", "", flags.max_restarts,
          "Restart all ranks so often after a failure, or replace so many", "N");
    value("--on-failure", "", flags.on_failure,
          "What follows a failure, or a host that comes or goes: stop, restart of all ranks (the "
          "default with --max-restarts), replace: a failed rank is started anew, and the others "
          "go on where the program recovers, or shrink: they go on without it",
          "WAY");
    value(
        "--spare-ranks", "", flags.spare_ranks,
        "With --on-failure replace: keep so many processes that have started as far as init(), to "
        "take a failed rank's place at once",
        "N");
    value(
        "--spare-nodes", "", flags.spare_nodes,
        "With --on-failure replace: more hosts, so many are expected, may come and wait; one takes "
        "the place of a host that is lost. With -H they are the last ones",
        "N");
    value(
        "--simulate-failures", "", flags.simulate_failures,
        "Kill a rank of this host now and then, on average every so many seconds, to see what the "
        "program makes of it",
        "every=SECONDS[,seed=N]");
    value("--grace", "", flags.grace, "Seconds between SIGTERM and SIGKILL after a failure",
          "SECONDS");
    value(
        "--stop-grace", "", flags.stop_grace,
        "The same when SIGTERM to lockstep run stops the job: time to save [25, or --grace if that "
        "is more]",
        "SECONDS");
    value("--shutdown-timeout", "", flags.grace, "torchrun's name of --grace", "SECONDS");

    app_.option_defaults()->group("Output");
    flag("--prefix", "", flags.prefix, "Put [rank]: before each line");
    flag("--tag-output", "", flags.tag_output,
         "Put [rank]<stdout>: before each line, as mpirun and horovodrun do");
    value("--log-line-prefix-template", "", flags.prefix_template,
          "Put this before each line, ${role_name}, ${rank} and ${local_rank} filled in (also "
          "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE)",
          "TEXT");
    value("--log-dir", "", flags.log_dir, "Where log files go", "DIR");
    flag("--allow-lost-logs", "", flags.allow_lost_logs,
         "Log files that cannot be written (a full disk) do not change the exit code");
    value("--trace-dir", "", flags.trace_dir,
          "Write the ranks' last calls there on a failure, and on SIGUSR1 and SIGUSR2", "DIR");
    value("--redirects", "-r", flags.redirects,
          "Streams to files only: 1 out, 2 err, 3 both; or 0:3,1:1 by rank", "STREAMS");
    value("--tee", "-t", flags.tee, "Streams that go to files and here", "STREAMS");
    value("--local-ranks-filter", "", flags.show_ranks, "Show the output of these local ranks only",
          "0,1,...");

    app_.option_defaults()->group("Program");
    value("--backend", "", flags.backend,
          "LOCKSTEP_BACKEND of the ranks; with mpi, mpirun starts them", "NAME");
    flag("--module", "-m", flags.module, "The program is a Python module (python3 -m)");
    flag("--no-python", "", flags.no_python, "Start the program itself even if it ends in .py");
    flag("--run-path", "", flags.run_path, "The program is a Python script whatever its name");
    flag("--use-env", "", unused_flag_, "The default: ranks learn their number from LOCAL_RANK");
    flag("--no-use-env", "", flags.no_use_env, "Also pass --local-rank=N to the program");

    value("--wdir", "", flags.working_directory, "The ranks' working directory, on every host",
          "DIR");

    app_.option_defaults()->group("Several hosts, started from here");
    value("--hosts", "-H", flags.hosts,
          "Hosts with their slots; other hosts' ranks are started through ssh", "HOST:SLOTS,...");
    value("--hostfile", "", flags.host_file,
          "The same from a file: a line 'HOST slots=N' or 'HOST:N' for each host", "FILE");
    flag("--oversubscribe", "", flags.oversubscribe, "Allow more ranks than the hosts have slots");
    list("--export", "-x", flags.forward,
         "Pass this variable on to other hosts, besides LOCKSTEP_* (may be repeated)",
         "NAME[=VALUE]");
    value("--ssh-command", "", flags.ssh_command,
          "Words to start an agent with instead of ssh (also LOCKSTEP_SSH)", "WORDS");

    app_.option_defaults()->group("Several hosts, one lockstep run on each");
    value("--nnodes", "", flags.nnodes, "How many hosts, or at least and at most", "N|MIN:MAX");
    value("--node-rank", "", flags.node_rank, "The number of this host, from 0", "N");
    value("--master-addr", "", flags.master_addr,
          "Where host 0's agent is; on one host: MASTER_ADDR", "HOST");
    value("--master-port", "", flags.master_port,
          "Its port (29500); on one host: MASTER_PORT (a free one)", "PORT");
    value("--rdzv-endpoint", "", flags.rdzv_endpoint,
          "Instead of numbers: where the first agent serves, and others that may take over, with "
          "commas between them; hosts are ordered by name",
          "HOST:PORT");
    value(
        "--rdzv-backend", "", flags.rdzv_backend,
        "c10d (by endpoint), static (by number), or etcd, which is at the endpoint then and elects "
        "the agent that leads",
        "NAME");
    value("--rdzv-conf", "", flags.rdzv_conf,
          "join_timeout=SECONDS (600), last_call_timeout=SECONDS (30), keep_alive_interval=SECONDS "
          "(1), keep_alive_max_attempt=N (8); for etcd protocol=https, cacert=, cert=, key=FILE, "
          "user=NAME, password-file=FILE",
          "K=V,...");
    value("--rdzv-id", "", flags.rdzv_id,
          "The job's name: TORCHELASTIC_RUN_ID, and the start of the log folder's name", "ID");
    value("--interface", "", flags.interface,
          "This host's network interface towards the others, or its address", "NAME");
    value("--network-interface", "", flags.interface, "horovodrun's name of --interface", "NAME");

    add_aliases(flags);

    app_.option_defaults()->group("Other");
    flag("--standalone", "", flags.standalone, "The default: one host");
    value("--numa-binding", "", flags.numa_binding,
          "Ignored: each rank has its share of the processors", "X");
    value("--signals-to-handle", "", flags.signals,
          "Signals to pass on; all that torchrun knows always are", "NAMES");
    for (const char* name :
         {"--duplicate-stdout-filters", "--duplicate-stderr-filters", "--logs-specs"}) {
      refused(name, flags, true);
    }
    refused("--virtual-local-rank", flags, false);
    app_.option_defaults()->group("");  // hides them from the help
    for (const char* name :
         {"--local-addr", "--monitor-interval", "--start-method", "--event-log-handler"}) {
      value(name, "", unused_, "Ignored", "X");
    }
    app_.option_defaults()->group("Other");
    flag("--help", "-h", flags.help, "This text");
    flags_.insert(flags_.end(), named_flags().begin(), named_flags().end());
  }

  void parse(const std::vector<std::string>& arguments, const EnvLookup& env, RunFlags& flags) {
    const SplitCommandLine split = split_command_line(arguments, flags_);
    refuse_several_programs(split);
    refuse_contradictions(split.flags);
    std::vector<std::string> words = split.flags, of_environment;
    for (const Flag& flag : flags_) {
      const auto given = [&](const std::string& word) { return is_of(word, flag.name); };
      if (!flag.takes_value || flag.foreign ||
          std::any_of(split.flags.begin(), split.flags.end(), given))
        continue;
      if (const auto value = env(environment_name(flag.name)); value && !value->empty())
        of_environment.push_back(flag.name + "=" + *value);
    }
    refuse_contradictions(of_environment, environment_name);
    words.insert(words.end(), of_environment.begin(), of_environment.end());
    flags.program = split.program;
    bool name_given = false;
    parse_options(app_, words);
    for (const auto& [name, setting] : settings_)
      flags.nproc_given =
          flags.nproc_given || (setting == &flags.nproc && app_.get_option(name)->count() > 0);
    if (cpu_) flags.device = "cpu";
    if (multi_gpu_) flags.device = "cuda";
    if (cpu_ && multi_gpu_) throw UsageError("--cpu and --multi-gpu contradict each other");
    for (const std::string& role : roles_) {
      if (role.find('=') != std::string::npos || role.find(',') != std::string::npos) {
        flags.roles.push_back(role);
      } else {
        flags.role = role;
        name_given = true;
      }
    }
    if (name_given && !flags.roles.empty())
      throw UsageError("--role " + flags.role + " beside --role " + flags.roles.front() +
                       ": give all roles a number of ranks, NAME=COUNT, or give one name for all");
  }

  std::string help() const { return with_program(help_of(app_, help_width())); }

  OptionTable table() const {
    OptionTable table = table_of(app_);
    table.usage = with_program(table.usage);
    // Of two letters: -np.
    for (const Flag& flag : flags_) {
      for (OptionRow& row : table.options) {
        const bool here =
            std::find(row.names.begin(), row.names.end(), flag.name) != row.names.end();
        const bool known =
            std::find(row.names.begin(), row.names.end(), flag.short_name) != row.names.end();
        if (here && !known && !flag.short_name.empty())
          row.names.insert(row.names.begin(), flag.short_name);
      }
    }
    return table;
  }

 private:
  // Other launchers' names. They are not shortened, and PET_* does not set them.
  void add_aliases(RunFlags& flags) {
    const size_t first = flags_.size();
    app_.option_defaults()->group("Names of mpirun, accelerate, deepspeed and horovodrun");
    value("--np", "-n", flags.nproc, "mpirun's -n and -np: ranks", "N");
    value("--host", "", flags.hosts, "mpirun's name of --hosts", "HOST:SLOTS,...");
    value("--machinefile", "-f", flags.host_file, "mpirun's name of --hostfile", "FILE");
    value("--npernode", "-N", flags.per_host, "Ranks on each host, also -ppn N", "N");
    value("--output-filename", "", flags.output_filename,
          "mpirun's and horovodrun's: --log-dir with --tee 3", "DIR");
    value("--num-processes", "", flags.processes, "accelerate's: ranks of all hosts together", "N");
    value("--num-machines", "", flags.nnodes, "accelerate's name of --nnodes", "N");
    value("--machine-rank", "", flags.node_rank, "accelerate's name of --node-rank", "N");
    value("--main-process-ip", "", flags.master_addr, "accelerate's name of --master-addr", "HOST");
    value("--main-process-port", "", flags.master_port, "accelerate's name of --master-port",
          "PORT");
    value("--num-cpu-threads-per-process", "", flags.threads, "accelerate's name of --threads",
          "N");
    value("--gpu-ids", "", flags.gpu_ids, "accelerate's: CUDA_VISIBLE_DEVICES of the ranks, or all",
          "N,N,...");
    flag("--cpu", "", cpu_, "accelerate's: LOCKSTEP_DEVICE=cpu for the ranks");
    flag("--multi-gpu", "", multi_gpu_, "accelerate's: LOCKSTEP_DEVICE=cuda for the ranks");
    value("--mixed-precision", "", flags.mixed_precision,
          "accelerate's: only 'no'; the program chooses its precision", "no");
    value("--num-gpus", "", flags.gpus, "deepspeed's: ranks on each host", "N");
    value("--num-nodes", "", flags.first_hosts,
          "deepspeed's: the first N hosts of --hostfile, or --nnodes", "N");
    value("--include", "-i", flags.include, "deepspeed's: only these hosts and their GPUs",
          "HOST:GPU,GPU@HOST");
    value("--exclude", "-e", flags.exclude, "deepspeed's: all but these hosts and their GPUs",
          "HOST:GPU,GPU@HOST");
    value("--reset-limit", "", flags.max_restarts, "horovodrun's name of --max-restarts", "N");
    app_.option_defaults()->group("");  // hides them from the help
    for (const char* name : {"--allow-run-as-root", "--nooversubscribe", "--no-local-rank",
                             "--bind-cores-to-rank", "--same-network"})
      flag(name, "", unused_flag_, "Accepted");
    for (const auto& [name, short_name, means] :
         std::initializer_list<std::array<const char*, 3>>{{"--n", "-c", "--np"},
                                                           {"--num-proc", "", "--np"},
                                                           {"--ppn", "", "--npernode"},
                                                           {"--perhost", "", "--npernode"},
                                                           {"--slots-per-host", "", "--npernode"},
                                                           {"--slots", "", "--npernode"},
                                                           {"--wd", "", "--wdir"},
                                                           {"--iface", "", "--interface"}})
      flags_.push_back({.name = name, .short_name = short_name, .means = means});
    flags_.push_back(
        {.name = "--prepend-rank", .short_name = "-l", .takes_value = false, .means = "--prefix"});
    for (size_t i = first; i < flags_.size(); ++i) flags_[i].foreign = true;
  }
  template <typename T>
  void value(const std::string& name, const std::string& short_name, T& target,
             const std::string& help, const std::string& type) {
    app_.add_option(with_short(name, short_name), target, help)
        ->type_name(type)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // all forms have the same meaning
    flags_.push_back({name, short_name, true});
    settings_[name] = &target;
  }
  // Adds a setting, under one name or two (-np and --nproc-per-node, --grace and
  // --shutdown-timeout).
  bool is_of(const std::string& word, const std::string& flag) const {
    const std::string name = word.substr(0, word.find('='));
    const auto setting = settings_.find(name), same = settings_.find(flag);
    return name == flag || (setting != settings_.end() && same != settings_.end() &&
                            setting->second == same->second && setting->second != &unused_);
  }
  // `shown` gives the name of a flag at the place where its words come from.
  void refuse_contradictions(
      const std::vector<std::string>& given,
      const std::function<std::string(const std::string&)>& shown = [](const auto& name) {
        return name;
      }) const {
    const auto as_given = [&](const std::string& word) {
      const size_t equals = word.find('=');
      return shown(word.substr(0, equals)) + word.substr(equals);
    };
    std::map<const void*, std::string> first;
    for (const std::string& word : given) {
      const auto setting = settings_.find(word.substr(0, word.find('=')));
      if (setting == settings_.end() || setting->second == &unused_) continue;
      const auto [it, fresh] = first.emplace(setting->second, word);
      const std::string value = word.substr(word.find('=') + 1);
      if (!fresh && it->second.substr(it->second.find('=') + 1) != value)
        throw UsageError(as_given(it->second) + " and " + as_given(word) +
                         " contradict each other; give one of them");
    }
  }
  void list(const std::string& name, const std::string& short_name,
            std::vector<std::string>& target, const std::string& help, const std::string& type) {
    app_.add_option(with_short(name, short_name), target, help)
        ->type_name(type)
        ->allow_extra_args(false);
    flags_.push_back({name, short_name, true});
  }
  void flag(const std::string& name, const std::string& short_name, bool& target,
            const std::string& help) {
    app_.add_flag(with_short(name, short_name), target, help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    flags_.push_back({name, short_name, false});
  }
  void refused(const std::string& name, RunFlags& flags, bool takes_value) {
    const auto note = [name, &flags](const std::string&) { flags.refused.push_back(name); };
    if (takes_value) {
      app_.add_option_function<std::string>(name, note, "Not supported")->group("");
    } else {
      app_.add_flag_function(name, [note](int64_t) { note(""); }, "Not supported")->group("");
    }
    flags_.push_back({name, "", takes_value});
  }
  static std::string with_program(std::string text) {
    const std::string options = "[OPTIONS]";
    if (const auto at = text.find(options); at != std::string::npos)
      text.replace(at, options.size(), "[flags] program [arguments]");
    return text;
  }
  // CLI11 requires single letters, so -np is replaced by the long name beforehand.
  static std::string with_short(const std::string& name, const std::string& short_name) {
    return short_name.size() == 2 ? short_name + "," + name : name;
  }
  static std::string environment_name(const std::string& name) {
    std::string result = "PET_" + name.substr(2);
    for (char& c : result)
      c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return result;
  }

  CLI::App app_;
  std::vector<Flag> flags_;
  std::map<std::string, const void*> settings_;  // the variable that a flag with a value sets
  std::vector<std::string> roles_;
  std::string unused_;
  bool unused_flag_ = false;
  bool cpu_ = false, multi_gpu_ = false;
};

}  // namespace

RunFlags parse_run_flags(const std::vector<std::string>& arguments, const EnvLookup& env) {
  RunFlags flags;
  RunParser(flags).parse(arguments, env, flags);
  return flags;
}

OptionTable run_table() {
  RunFlags flags;
  return RunParser(flags).table();
}

std::string run_help() {
  RunFlags flags;
  return RunParser(flags).help();
}

}  // namespace lockstep::inline v0::cli
