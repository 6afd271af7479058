#include "lockstep/cli/doctor/command.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/cli/doctor/checks.h"
#include "lockstep/cli/doctor/findings.h"
#include "lockstep/cli/doctor/peer.h"
#include "lockstep/cli/doctor/trace.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/core/secret.h"

namespace lockstep::cli {
namespace {

struct DoctorFlags {
  std::string trace;
  std::string json;
  std::string peer;
  std::optional<int> listen;
  std::string interface;
  double timeout = 60;
  bool help = false;
};

class DoctorParser {
 public:
  explicit DoctorParser(DoctorFlags& flags)
      : app_("Looks at what a job of several ranks needs, and says what to do where it is missing.",
             "lockstep doctor") {
    app_.set_help_flag();
    app_.footer(
        "Two hosts: 'lockstep doctor --listen 29600' on one and 'lockstep doctor --peer "
        "HOST:29600'\n"
        "on the other, both with the same text in LOCKSTEP_SECRET, tell whether each reaches the "
        "other.\n"
        "Exit code: 0 when nothing is wrong (warnings aside), 1 otherwise, 2 for a wrong flag.");
    app_.add_option("--trace", flags.trace,
                    "Merge the traces of a job's ranks (lockstep run --trace-dir) and say where "
                    "they fell out of step")
        ->type_name("DIR");
    app_.add_option("--json", flags.json, "Write the findings there too")->type_name("FILE");
    app_.add_option("--listen", flags.listen, "Wait for another host's --peer")
        ->type_name("PORT")
        ->check(CLI::Range(0, 65535));
    app_.add_option("--peer", flags.peer, "Connect to another host's --listen")
        ->type_name("HOST:PORT");
    app_.add_option("--interface", flags.interface,
                    "With --listen or --peer: this host's interface, or its address")
        ->type_name("NAME");
    app_.add_option("--timeout", flags.timeout, "Seconds that --listen and --peer wait")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.1, 1e6));
    app_.add_flag("--help,-h", flags.help, "This text");
  }

  void parse(const std::vector<std::string>& words) { parse_options(app_, words); }
  std::string help() const { return app_.help(); }

 private:
  CLI::App app_;
};

void check(const DoctorFlags& flags) {
  const bool network = !flags.peer.empty() || flags.listen;
  if (!flags.trace.empty() && network)
    throw UsageError("--trace looks at files; it goes with neither --peer nor --listen");
  if (!flags.peer.empty() && flags.listen)
    throw UsageError("one host has --listen, the other --peer");
  if (!flags.interface.empty() && !network)
    throw UsageError("--interface goes with --listen or --peer");
}

void write_json(const DoctorFlags& flags, const nlohmann::ordered_json& json) {
  if (!flags.json.empty())
    write_file_aside(flags.json,
                     json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

int look_at_traces(const DoctorFlags& flags) {
  const TraceReport report = merge_traces(trace::read_traces(flags.trace));
  write_stdout(format_report(report));
  write_json(flags, json_of(report));
  return report.wrong ? 1 : 0;
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
    write_stdout(parser.help());
    return 0;
  }
  check(flags);
  check_output_file(flags.json);
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
  write_stdout(format_findings(findings));
  write_json(flags, {{"findings", json_of(findings)}});
  return any_problem(findings) ? 1 : 0;
}

std::string doctor_help() {
  DoctorFlags flags;
  return DoctorParser(flags).help();
}

}  // namespace lockstep::cli
