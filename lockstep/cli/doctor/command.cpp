#include "lockstep/cli/doctor/command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/cli/doctor/checks.h"
#include "lockstep/cli/doctor/findings.h"
#include "lockstep/cli/doctor/live_jobs.h"
#include "lockstep/cli/doctor/overlap.h"
#include "lockstep/cli/doctor/peer.h"
#include "lockstep/cli/doctor/trace.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/option_table.h"
#include "lockstep/cli/printable_lines.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/core/secret.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::cli {
namespace {

struct DoctorFlags {
  std::string trace;
  std::string json;
  std::string peer;
  std::optional<int> listen;
  std::string interface;
  double timeout = 60;
  bool live = false;
  std::string live_pid;
  double every = 1;
  int times = 0;
  bool paces = false;  // --every or --times was given
  bool help = false;
};

class DoctorParser {
 public:
  explicit DoctorParser(DoctorFlags& flags)
      : flags_(flags),
        app_("Looks at what a job of several ranks needs, and says what to do where it is missing.",
             "lockstep doctor") {
    app_.set_help_flag();
    app_.footer(
        "Two hosts: 'lockstep doctor --listen 29600' on one and 'lockstep doctor --peer "
        "HOST:29600' on the other, both with the same text in LOCKSTEP_SECRET, tell whether each "
        "reaches the other.\n"
        "Exit code: 0 when nothing is wrong (warnings aside), 1 otherwise, 2 for a wrong flag.");
    add_example(app_, {"lockstep doctor", "lockstep doctor --trace traces"});
    app_.add_option("--trace", flags.trace,
                    "Merge the traces of a job's ranks (lockstep run --trace-dir) and say where "
                    "they fell out of step; of a timeline (DIR/trace.json) say how much "
                    "communication was hidden")
        ->type_name("DIR");
    live_ = app_.add_option("--live", flags.live_pid,
                            "Show what the ranks of a running job on this host are in, and for "
                            "which of them the others wait, anew every second; PID: of lockstep "
                            "run or a rank, where there are several jobs")
                ->type_name("[PID]")
                ->expected(0, 1);
    app_.add_option("--every", flags.every, "With --live: seconds from one look to the next [1]")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.05, 1e6));
    app_.add_option("--times", flags.times,
                    "With --live: so many looks; 0: until the job is over [0]")
        ->type_name("N")
        ->check(CLI::Range(0, 1000000000));
    app_.add_option("--json", flags.json, "Write the findings there too")->type_name("FILE");
    app_.add_option("--listen", flags.listen, "Wait for another host's --peer")
        ->type_name("PORT")
        ->check(CLI::Range(0, 65535));
    app_.add_option("--peer", flags.peer, "Connect to another host's --listen")
        ->type_name("HOST:PORT");
    app_.add_option("--interface", flags.interface,
                    "With --listen or --peer: this host's interface, or its address")
        ->type_name("NAME");
    app_.add_option("--timeout", flags.timeout, "Seconds that --listen and --peer wait [60]")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.1, 1e6));
    app_.add_flag("--help,-h", flags.help, "This text");
  }

  void parse(const std::vector<std::string>& words) {
    parse_options(app_, words);
    flags_.live = live_->count() > 0;
    flags_.paces =
        app_.get_option("--every")->count() > 0 || app_.get_option("--times")->count() > 0;
  }
  std::string help() const { return help_of(app_, help_width()); }
  OptionTable table() const { return table_of(app_); }

 private:
  DoctorFlags& flags_;
  CLI::App app_;
  CLI::Option* live_ = nullptr;
};

void check(const DoctorFlags& flags) {
  const bool network = !flags.peer.empty() || flags.listen;
  if (!flags.trace.empty() && network)
    throw UsageError("--trace looks at files; it goes with neither --peer nor --listen");
  if (flags.live && (network || !flags.trace.empty() || !flags.json.empty()))
    throw UsageError("--live goes with --every and --times alone");
  if (flags.paces && !flags.live) throw UsageError("--every and --times go with --live");
  if (!flags.peer.empty() && flags.listen)
    throw UsageError("one host has --listen, the other --peer");
  if (!flags.interface.empty() && !network)
    throw UsageError("--interface goes with --listen or --peer");
}

void write_json(const DoctorFlags& flags, const nlohmann::ordered_json& json) {
  write_output_file(flags.json,
                    json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// Returns the error where a folder has no traces. "": it has some, or it is not a folder, which
// reading it will report.
std::string why_no_traces(const std::filesystem::path& folder) {
  const std::string when =
      "traces are written when a job fails, or on SIGUSR1 and SIGUSR2 to lockstep run, so there "
      "are none where nothing has failed";
  std::error_code error;
  if (!std::filesystem::exists(folder, error) && !error)
    throw DataError(folder.string() + " cannot be read, since it does not exist; " + when);
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("rank") && name.ends_with(".json")) return "";
  }
  return error ? "" : "No traces in " + folder.string() + ": " + when + ".";
}

// What a timeline says, if there is one.
bool look_at_timeline(const DoctorFlags& flags, nlohmann::ordered_json& json) {
  std::optional<OverlapReport> overlap;
  try {
    overlap = read_overlap(flags.trace);
  } catch (const DataError& error) {
    // In a folder another program's file may have this name.
    if (!std::filesystem::is_directory(flags.trace) || !why_no_traces(flags.trace).empty()) throw;
    write_for_people(printable_lines(std::string(error.what()) + "\n"), {flags.json});
    return false;
  }
  if (!overlap) return false;
  write_for_people(printable_lines(format_overlap(*overlap, columns_of(STDOUT_FILENO, SIZE_MAX))),
                   {flags.json});
  json["timeline"] = json_of(*overlap);
  return true;
}

int look_at_traces(const DoctorFlags& flags) {
  nlohmann::ordered_json timeline = nlohmann::ordered_json::object();
  const bool found = look_at_timeline(flags, timeline);
  const bool alone = found && !std::filesystem::is_directory(flags.trace);
  if (alone || (found && !why_no_traces(flags.trace).empty())) {
    write_json(flags, timeline);
    return 0;
  }
  if (found) write_for_people("\n", {flags.json});
  if (const std::string why = why_no_traces(flags.trace); !why.empty()) {
    TraceReport nothing;
    nothing.verdict = {why};
    write_for_people(why + "\n", {flags.json});
    write_json(flags, json_of(nothing));
    return 0;
  }
  const TraceReport report = merge_traces(trace::read_traces(flags.trace));
  write_for_people(printable_lines(format_report(report, columns_of(STDOUT_FILENO, SIZE_MAX))),
                   {flags.json});
  nlohmann::ordered_json json = json_of(report);
  json.update(timeline);
  write_json(flags, json);
  return report.wrong ? 1 : 0;
}

int look_at_running(const DoctorFlags& flags) {
  LiveOptions options{.every = flags.every, .times = flags.times};
  if (!flags.live_pid.empty()) {
    const auto pid = parse_int(flags.live_pid, 1, INT32_MAX);
    if (!pid)
      throw UsageError("--live is '" + flags.live_pid + "'; give the pid of lockstep run, or none");
    options.pid = static_cast<int>(*pid);
  }
  return show_live(options);
}

Secret secret_of_environment() {
  const auto secret = Secret::from_env(process_env());
  if (!secret)
    throw UsageError(
        "--listen and --peer need a secret that both hosts know: set LOCKSTEP_SECRET to the same "
        "text on both");
  return *secret;
}

}  // namespace

int doctor_command(const std::vector<std::string>& arguments) {
  DoctorFlags flags;
  DoctorParser parser(flags);
  parser.parse(arguments);
  if (flags.help) {
    write_stdout(help_output(parser.table(), parser.help()));
    return 0;
  }
  check(flags);
  check_output_file(flags.json);
  if (flags.live) return look_at_running(flags);
  if (!flags.trace.empty()) return look_at_traces(flags);
  std::vector<Finding> findings;
  const Deadline deadline = Deadline::seconds(flags.timeout);
  if (flags.listen) {
    findings = listen_for_peer(static_cast<uint16_t>(*flags.listen), flags.interface,
                               secret_of_environment(), deadline);
  } else if (!flags.peer.empty()) {
    findings =
        visit_peer(parse_host_port(flags.peer), flags.interface, secret_of_environment(), deadline);
  } else {
    findings = check_host();
  }
  write_for_people(printable_lines(format_findings(findings, columns_of(STDOUT_FILENO, SIZE_MAX))),
                   {flags.json});
  write_json(flags, {{"findings", json_of(findings)}});
  return any_problem(findings) ? 1 : 0;
}

OptionTable doctor_table() {
  DoctorFlags flags;
  return DoctorParser(flags).table();
}

std::string doctor_help() {
  DoctorFlags flags;
  return DoctorParser(flags).help();
}

}  // namespace lockstep::inline v0::cli
