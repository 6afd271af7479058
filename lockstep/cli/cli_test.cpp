// The command line of `lockstep run`, without starting anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <map>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/completion.h"
#include "lockstep/cli/doctor/command.h"
#include "lockstep/cli/export/command.h"
#include "lockstep/cli/flag_syntax.h"
#include "lockstep/cli/manual.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/plan/command.h"
#include "lockstep/cli/printable_lines.h"
#include "lockstep/cli/run/command.h"
#include "lockstep/cli/run/mpi.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::cli {
namespace cli_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Words = std::vector<std::string>;

EnvLookup no_env() {
  return [](std::string_view) { return std::nullopt; };
}

Words words_of(const std::string& line) {
  Words words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

RunFlags flags_of(const std::string& line) {
  return parse_run_flags(words_of(line), no_env());
}

MachineFacts machine() {
  MachineFacts facts;
  facts.cpus = 8;
  facts.host_name = "here";
  facts.python = "/usr/bin/python3";
  facts.addresses = {{"lo", "127.0.0.1", true}, {"eth0", "10.0.0.5", false}};
  return facts;
}

MachineFacts machine_with(std::map<std::string, std::string, std::less<>> variables) {
  MachineFacts facts = machine();
  facts.env = [variables](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
  return facts;
}

RunPlan plan(const std::string& line) {
  return plan_run(flags_of(line), machine());
}
Words command(const std::string& line) {
  return plan(line).options.command;
}

std::string error_of(const std::string& line) {
  try {
    plan(line);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line";
    return error.what();
  }
  return "no error";
}

std::string line_of(const Words& words) {
  CLI::App app("", "lockstep thing");
  int epochs = 0, hidden = 0;
  double lr = 0;
  std::string checkpoint, text;
  app.add_option("--text", text);
  app.add_option("--epochs", epochs);
  app.add_option("--lr", lr);
  app.add_option("--learning-rate-schedule", hidden);
  app.add_option("--secret", hidden)->group("");
  app.add_option("--checkpoint", checkpoint)->required()->type_name("DIR");
  double every = 0;
  app.add_option("--every", every)->check(CLI::Range(0.05, 1e6));
  app.add_option("--port", hidden)->check(CLI::Range(0, 65535));
  app.add_option("--split", text)->check(CLI::IsMember({"train", "dev", "test"}));
  std::string line = "no error";
  try {
    parse_options(app, words);
  } catch (const UsageError& error) {
    line = error.what();
  }
  return line;
}

TEST(PrintableLines, LinesAndTabsStayAndNothingIsObeyed) {
  EXPECT_EQ(printable_lines("one\ttwo\r\nthree\n"), "one\ttwo\nthree\n");
  EXPECT_EQ(printable_lines("a\x1b]0;b\x07 \xff\n\u009b"), "a?]0;b? ?\n?");
  EXPECT_EQ(printable_lines(""), "");
}

TEST(OptionParsing, NamesTheOptionTheLikelyOneAndWhatItTakes) {
  EXPECT_EQ(line_of({"--checkpoint", "x", "--epohs", "3"}),
            "unknown option --epohs (did you mean --epochs?); see lockstep thing --help");
  EXPECT_THAT(line_of({"--checkpont=x"}), HasSubstr("--checkpont (did you mean --checkpoint?)"))
      << "rather than that --checkpoint is missing";
  EXPECT_THAT(line_of({"--learning"}), HasSubstr("--learning-rate-schedule needs a value"))
      << "a shortened one";
  EXPECT_EQ(line_of({"--secre"}), "unknown option --secre; see lockstep thing --help");
  EXPECT_THAT(line_of({"--checkpoint", "x", "more"}), HasSubstr("unexpected argument 'more'"));
  EXPECT_THAT(line_of({}), HasSubstr("--checkpoint is required"));
  EXPECT_THAT(line_of({"--checkpoint"}), HasSubstr("--checkpoint needs a value"));
  EXPECT_THAT(line_of({"--checkpoint", "x", "--epochs", "1.5"}),
              HasSubstr("--epochs is '1.5'; give a whole number"));
  EXPECT_THAT(line_of({"--checkpoint", "x", "--lr", "high"}),
              HasSubstr("--lr is 'high'; give a number"));
}

TEST(OptionParsing, AValueOutOfRangeIsSaidAsOtherValuesAre) {
  EXPECT_EQ(line_of({"--checkpoint", "x", "--every", "0"}),
            "--every is '0'; give 0.05 to 1000000; see lockstep thing --help");
  EXPECT_EQ(line_of({"--checkpoint", "x", "--port", "99999"}),
            "--port is '99999'; give 0 to 65535; see lockstep thing --help");
  EXPECT_EQ(line_of({"--checkpoint", "x", "--split", "tset"}),
            "--split is 'tset'; give train, dev or test; see lockstep thing --help");
}

TEST(OptionParsing, AnEmptyValueIsNoValue) {
  EXPECT_EQ(line_of({"--checkpoint", ""}),
            "--checkpoint is empty; give it a value, or leave it out; see lockstep thing --help");
  EXPECT_EQ(line_of({"--checkpoint", "x", "--text", ""}), "no error") << "a text may be empty";
}

// No line is wider than a terminal of 100 columns, and the last one can be copied.
void expect_help(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line); last = line) {
    EXPECT_LE(line.size(), kHelpWidth) << line;
    EXPECT_FALSE(line.ends_with(' ')) << "'" << line << "'";
  }
  EXPECT_THAT(text, HasSubstr("Usage: lockstep"));
  EXPECT_THAT(text, testing::ContainsRegex("\nExamples?:\n  lockstep "));
  EXPECT_TRUE(last.starts_with("  lockstep ")) << last;
}

// On a terminal of 80 columns no line breaks in the middle of a word.
TEST(OptionParsing, HelpIsAsWideAsItIsAskedToBe) {
  CLI::App app("Does " + std::string(60, 'x') + " and more than that.", "lockstep thing");
  int count = 0;
  app.add_option("--count", count, "how many " + std::string(30, 'y') + " " + std::string(30, 'z'));
  std::istringstream lines(help_of(app, 80));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_EQ(help_width(), kHelpWidth) << "of no terminal";
}

TEST(OptionParsing, HelpSaysWhatAnOptionTakes) {
  CLI::App app("Does " + std::string(120, 'x') + " and more.", "lockstep thing");
  std::string text, name, file = "f";
  int count = 0;
  double rate = 0;
  bool flag = false;
  app.add_option("OUT", file, "where it goes")->required()->type_name("FILE");
  app.add_option("--name", name, "who it is [a]")->check(CLI::IsMember({"a", "b"}));
  app.add_option("--count", count, "how many " + std::string(30, 'y') + " " + std::string(60, 'z'))
      ->check(CLI::Range(1, 9))
      ->group("Numbers");
  app.add_option("--rate", rate, "how fast")->group("Numbers");
  app.add_option("--a-name-that-is-long-enough", text, "a text")->group("Numbers");
  app.add_flag("-f,--flag", flag, "on")->group("Numbers");
  app.add_option("--secret", count, "hidden")->group("");
  app.footer("Exit code: 0.");
  add_example(app, {"lockstep thing --count 1 out"});
  EXPECT_EQ(help_of(app),
            "Usage: lockstep thing OUT [OPTIONS]\n"
            "\n"
            "Does\n" +
                std::string(120, 'x') +
                "\nand more.\n"
                "\n"
                "Options:\n"
                "  OUT                       (required) where it goes\n"
                "  --name a|b                who it is [a]\n"
                "\n"
                "Numbers:\n"
                "  --count N                 how many " +
                std::string(30, 'y') + "\n" + std::string(28, ' ') + std::string(60, 'z') +
                "\n"
                "  --rate NUMBER             how fast\n"
                "  --a-name-that-is-long-enough TEXT\n"
                "                            a text\n"
                "  -f, --flag                on\n"
                "  -h, --help                Print this help message and exit\n"
                "\n"
                "Exit code: 0.\n"
                "\n"
                "Example:\n"
                "  lockstep thing --count 1 out\n");
}

TEST(OptionParsing, ALongListBreaksBehindAComma) {
  CLI::App app("x", "lockstep thing");
  std::string names;
  std::string list = "of [first";
  for (int i = 0; i < 12; ++i) list += ",second-" + std::to_string(i);
  app.add_option("--names", names, list + "]")->type_name("NAME,...");
  add_example(app, {"lockstep thing"});
  expect_help(help_of(app));
  EXPECT_THAT(help_of(app), HasSubstr(",\n" + std::string(28, ' ') + "second-"));
}

TEST(Help, FitsATerminalAndEndsWithAnExample) {
  for (const std::string& text : {help_text(), run_help(), doctor_help(), export_help(),
                                  plan_help(), completion_help(), manual_help()})
    expect_help(text);
}

TEST(RunFlags, WrongValuesAreOneLine) {
  EXPECT_EQ(error_of("--max-restarts 1.5 /bin/true"),
            "--max-restarts is '1.5'; give a whole number; see lockstep run --help");
  EXPECT_THAT(error_of("--grace long /bin/true"), HasSubstr("--grace is 'long'; give a number"));
  EXPECT_EQ(error_of("-np 100000 /bin/true"),
            "--nproc-per-node=100000: expected a number of ranks from 1 to 1024, auto, cpu or gpu");
}

TEST(RunFlags, TorchrunsPrefixTemplate) {
  for (const char* flag : {"--log-line-prefix-template", "--log_line_prefix_template"})
    EXPECT_EQ(plan(std::string(flag) + " [${rank}] /bin/true").options.prefix_template,
              "[${rank}]");
  const MachineFacts other = machine_with({{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${rank}|"}});
  EXPECT_EQ(plan_run(flags_of("/bin/true"), other).options.prefix_template, "${rank}|");
  EXPECT_EQ(
      plan_run(flags_of("--log-line-prefix-template x /bin/true"), other).options.prefix_template,
      "x");
}

TEST(RunFlags, TheProgramsOwnFlagsAreItsOwn) {
  const RunFlags flags = flags_of("--nproc-per-node 2 /bin/echo --nproc-per-node 9 -h");
  EXPECT_EQ(flags.nproc, "2");
  EXPECT_FALSE(flags.help);
  EXPECT_THAT(flags.program, ElementsAre("/bin/echo", "--nproc-per-node", "9", "-h"));
  EXPECT_THAT(flags_of("-np 3 -- -odd-name").program, ElementsAre("-odd-name"));
}

// The launch lines of the tutorials, after "python -m torch.distributed.launch".
TEST(RunFlags, TheTutorialsLinesParse) {
  const RunFlags three = flags_of(
      "--nnode=1 --node_rank=0 --nproc_per_node=2 --use_env multi-gpu-distributed-cls.py "
      "--local_world_size=2");
  EXPECT_EQ(three.nnodes, "1");
  EXPECT_EQ(three.nproc, "2");
  EXPECT_FALSE(three.no_use_env);
  EXPECT_THAT(three.program, ElementsAre("multi-gpu-distributed-cls.py", "--local_world_size=2"));

  Words words = words_of("--nproc_per_node=4 --nnodes=2 --node_rank=0 --master_port=1234 main.py");
  words.insert(words.begin() + 3, "--master_addr=serverA");
  const RunFlags one = parse_run_flags(words, no_env());
  EXPECT_EQ(one.nproc, "4");
  EXPECT_EQ(one.nnodes, "2");
  EXPECT_EQ(one.node_rank, 0);
  EXPECT_EQ(one.master_addr, "serverA");
  EXPECT_EQ(one.master_port, 1234);
  EXPECT_THAT(one.program, ElementsAre("main.py"));
  EXPECT_THAT(
      error_of("--nproc_per_node=4 --nnodes=2 --node_rank=0 --master_addr=serverA /bin/true"),
      HasSubstr("secret"));
}

TEST(RunFlags, EveryFlagOfTorchrunIsKnown) {
  const RunFlags flags = flags_of(
      "--nnodes 1:1 --nproc-per-node auto --rdzv-backend c10d --rdzv_endpoint localhost:0 "
      "--rdzv-id job7 --rdzv-conf a=b "
      "--standalone --max-restarts 3 --monitor-interval 0.1 --start-method spawn "
      "--event-log-handler null --role trainer "
      "-m --no-python --run-path --log-dir /tmp/x -r 3 -t 0:1,1:2 --local-ranks-filter 0,1 "
      "--node-rank 0 --master-addr h "
      "--master-port 1 --local-addr l --numa-binding node --signals-to-handle SIGTERM,SIGUSR1 "
      "--shutdown-timeout 7 prog");
  EXPECT_EQ(flags.nnodes, "1:1");
  EXPECT_EQ(flags.nproc, "auto");
  EXPECT_EQ(flags.rdzv_id, "job7");
  EXPECT_TRUE(flags.standalone);
  EXPECT_EQ(flags.max_restarts, 3);
  EXPECT_EQ(flags.role, "trainer");
  EXPECT_TRUE(flags.module && flags.no_python && flags.run_path);
  EXPECT_EQ(flags.redirects, "3");
  EXPECT_EQ(flags.tee, "0:1,1:2");
  EXPECT_EQ(flags.show_ranks, "0,1");
  EXPECT_EQ(flags.master_port, 1);
  EXPECT_EQ(flags.grace, 7);
  EXPECT_THAT(flags.program, ElementsAre("prog"));
  for (const char* refused : {"--duplicate-stdout-filters a", "--duplicate_stderr_filters=a",
                              "--logs-specs x", "--virtual-local-rank"}) {
    EXPECT_THAT(error_of(std::string(refused) + " /bin/true"), HasSubstr("not supported"))
        << refused;
  }
}

TEST(RunFlags, BothSpellingsAndShortForms) {
  EXPECT_EQ(flags_of("--nproc_per_node 2 x").nproc, "2");
  EXPECT_EQ(flags_of("--nproc 2 x").nproc, "2");
  EXPECT_EQ(flags_of("-np 2 x").nproc, "2");
  EXPECT_EQ(flags_of("-np 2 --nproc-per-node=2 x").nproc, "2");
  EXPECT_EQ(flags_of("-r3 -t 1 x").redirects, "3");
  EXPECT_EQ(flags_of("-r=2 x").redirects, "2");
  EXPECT_EQ(flags_of("--nnode=1 x").nnodes, "1");
}

TEST(RunFlags, OneSettingWithTwoValuesIsRefused) {
  EXPECT_EQ(error_of("-np 2 --nproc 3 x"),
            "--nproc-per-node=2 and --nproc-per-node=3 contradict each other; give one of them");
  EXPECT_THAT(error_of("--max-restarts 1 --max-restarts 2 x"), HasSubstr("contradict each other"));
  EXPECT_EQ(error_of("--grace 3 --shutdown-timeout 4 x"),
            "--grace=3 and --shutdown-timeout=4 contradict each other; give one of them");
  EXPECT_EQ(flags_of("--grace 3 --shutdown-timeout 3 -x A -x B x").grace, 3);
  EXPECT_EQ(flags_of("--local-addr a --start-method b x").nproc, "1") << "neither means anything";
}

TEST(RunFlags, VariablesOfTorchrunAreDefaults) {
  const EnvLookup env = [](std::string_view name) -> std::optional<std::string> {
    if (name == "PET_NPROC_PER_NODE") return "4";
    if (name == "PET_MAX_RESTARTS") return "2";
    if (name == "PET_LOG_DIR") return "";
    return std::nullopt;
  };
  const RunFlags flags = parse_run_flags({"--max-restarts=1", "x"}, env);
  EXPECT_EQ(flags.nproc, "4");
  EXPECT_EQ(flags.max_restarts, 1) << "a flag wins over a variable";
  EXPECT_EQ(flags.log_dir, "") << "an empty variable is none";
}

// torchrun has one name for the flag, and therefore one variable.
TEST(RunFlags, AFlagWinsOverTheVariableOfItsOtherName) {
  std::map<std::string, std::string, std::less<>> variables = {{"PET_SHUTDOWN_TIMEOUT", "9"}};
  const auto grace_with = [&](const Words& words) {
    return parse_run_flags(words, machine_with(variables).env).grace;
  };
  EXPECT_EQ(grace_with({"x"}), 9);
  EXPECT_EQ(grace_with({"--grace=3", "x"}), 3);
  EXPECT_EQ(grace_with({"--shutdown-timeout", "3", "x"}), 3);
  variables["PET_GRACE"] = "9";
  EXPECT_EQ(grace_with({"x"}), 9);
  variables["PET_GRACE"] = "4";
  EXPECT_EQ(grace_with({"--shutdown-timeout", "3", "x"}), 3);
  EXPECT_EQ(message_of<UsageError>([&] { grace_with({"x"}); }),
            "PET_GRACE=4 and PET_SHUTDOWN_TIMEOUT=9 contradict each other; give one of them");
}

TEST(RunFlags, WrongFlagsAreOneClearLine) {
  EXPECT_THAT(error_of("--nporc-per-node 2 x"),
              HasSubstr("unknown flag --nporc-per-node (did you mean --nproc-per-node?)"));
  EXPECT_THAT(error_of("--frobnicate x"), HasSubstr("unknown flag --frobnicate"));
  EXPECT_THAT(error_of("--rdzv=1 x"), AllOf(HasSubstr("may mean"), HasSubstr("--rdzv-id")));
  EXPECT_THAT(error_of("-q x"), HasSubstr("unknown flag -q"));
  EXPECT_THAT(error_of("--nproc-per-node"), HasSubstr("--nproc-per-node needs a value"));
  EXPECT_THAT(error_of("--log-dir= x"), HasSubstr("--log-dir needs a value"));
  EXPECT_THAT(error_of("--prefix=1 x"), HasSubstr("--prefix takes no value"));
  EXPECT_THAT(error_of("--max-restarts many x"), HasSubstr("--max-restarts"));
}

TEST(RunPlan, WrongValuesAreOneClearLine) {
  EXPECT_THAT(error_of("--nproc-per-node 2"), HasSubstr("no program to run"));
  EXPECT_THAT(error_of("--nproc-per-node 0 /bin/true"),
              HasSubstr("--nproc-per-node=0: expected a number of ranks"));
  EXPECT_THAT(error_of("-np two /bin/true"), HasSubstr("--nproc-per-node=two"));
  EXPECT_THAT(error_of("-np gpu /bin/true"), HasSubstr("no GPU"));
  EXPECT_THAT(error_of("no-such-program"), HasSubstr("'no-such-program' not found on PATH"));
  EXPECT_THAT(error_of("./no-such-program"), HasSubstr("No such file"));
  EXPECT_THAT(error_of("no-such-script.py"),
              HasSubstr("script 'no-such-script.py' does not exist"));
  EXPECT_THAT(error_of("--nnodes 4:1 --rdzv-endpoint a /bin/true"),
              HasSubstr("at least 4 hosts and at most 1 contradict each other"));
  EXPECT_THAT(error_of("--nnodes 0:4 /bin/true"), HasSubstr("such as 2 or 2:4"));
  EXPECT_THAT(error_of("--on-failure panic /bin/true"),
              HasSubstr("expected stop, restart, replace or shrink"));
  EXPECT_THAT(error_of("--on-failure replace /bin/true"),
              HasSubstr("--on-failure=replace needs --max-restarts=N"));
  EXPECT_THAT(error_of("--on-failure shrink --max-restarts 2 /bin/true"),
              HasSubstr("--on-failure=shrink contradicts --max-restarts=2"));
  EXPECT_THAT(error_of("--spare-ranks 1 --max-restarts 2 /bin/true"),
              HasSubstr("--spare-ranks=1 needs --on-failure=replace"));
  EXPECT_THAT(error_of("--spare-ranks -1 --on-failure replace --max-restarts 2 /bin/true"),
              HasSubstr("--spare-ranks=-1: expected a number of spares"));
  EXPECT_THAT(
      error_of("--spare-ranks 1 --on-failure replace --max-restarts 2 --no-use-env /bin/true"),
      HasSubstr("--spare-ranks=1 does not go with ${local_rank}"));
  EXPECT_THAT(error_of("--simulate-failures every=0 /bin/true"),
              HasSubstr("--simulate-failures: 'every=0': every=0: expected seconds above 0"));
  EXPECT_THAT(error_of("--on-failure stop --max-restarts 2 /bin/true"),
              HasSubstr("--on-failure=stop contradicts --max-restarts=2"));
  EXPECT_THAT(error_of("--nnodes x /bin/true"), HasSubstr("--nnodes=x"));
  EXPECT_THAT(error_of("--node-rank 1 /bin/true"), HasSubstr("--node-rank=1"));
  EXPECT_THAT(error_of("-r 4 /bin/true"), HasSubstr("--redirects: '4'"));
  EXPECT_THAT(error_of("--local-ranks-filter a /bin/true"), HasSubstr("--local-ranks-filter=a"));
  EXPECT_THAT(error_of("--signals-to-handle SIGKILL /bin/true"), HasSubstr("SIGKILL"));
  EXPECT_THAT(error_of("--max-restarts -1 /bin/true"), HasSubstr("negative"));
  EXPECT_THAT(error_of("-m --no-python json.tool"), HasSubstr("contradict"));
}

TEST(RunPlan, Ranks) {
  EXPECT_EQ(plan("/bin/true").options.nproc, 1);
  EXPECT_EQ(plan("-np 3 /bin/true").options.nproc, 3);
  EXPECT_EQ(plan("-np auto /bin/true").options.nproc, 8);
  EXPECT_EQ(plan("-np cpu /bin/true").options.nproc, 8);
  MachineFacts with_gpus = machine();
  with_gpus.gpus = 2;
  EXPECT_EQ(plan_run(flags_of("-np auto /bin/true"), with_gpus).options.nproc, 2);
  EXPECT_EQ(plan("-H localhost:2 /bin/true").options.nproc, 2);
  EXPECT_EQ(plan("-np 1 -H here:2 /bin/true").options.nproc, 1);
  EXPECT_THAT(error_of("-np 3 -H localhost:2 /bin/true"),
              HasSubstr("3 ranks do not fit -H, which has 2 slots"));
  EXPECT_THAT(error_of("-H localhost:0 /bin/true"), HasSubstr("at least 1 slot"));
}

launch::NodesOptions nodes_of(const std::string& line) {
  return plan_run(flags_of(line), machine_with({{"LOCKSTEP_SECRET", "s"}})).options.nodes.value();
}

std::string nodes_error(const std::string& line) {
  try {
    nodes_of(line);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunNodes, ByNumber) {
  const auto first =
      nodes_of("--nnodes 2 --node-rank 0 --master-addr a --master-port 7 -np 3 /bin/true");
  EXPECT_EQ(first.server, launch::NodesOptions::Server::kThis);
  EXPECT_EQ(first.nodes, 2);
  EXPECT_EQ(first.number, 0);
  EXPECT_EQ(first.endpoints.front().to_string(), "a:7");
  EXPECT_EQ(first.secret.text(), "s");
  const auto second =
      nodes_of("--nnodes 2:2 --node-rank 1 --rdzv-backend static --rdzv-endpoint a /bin/true");
  EXPECT_EQ(second.server, launch::NodesOptions::Server::kOther);
  EXPECT_EQ(second.endpoints.front().to_string(), "a:29500");
  EXPECT_THAT(nodes_error("--nnodes 2 /bin/true"), HasSubstr("--node-rank"));
  EXPECT_THAT(nodes_error("--nnodes 2 --node-rank 2 --master-addr a /bin/true"),
              HasSubstr("--node-rank=2 contradicts --nnodes=2"));
}

TEST(RunNodes, ByEndpoint) {
  const auto nodes = nodes_of(
      "--nnodes 3 --rdzv-endpoint [fd00::1]:29 --rdzv-backend c10d --rdzv-conf "
      "join_timeout=5,keep_alive_interval=2,keep_alive_max_attempt=3 --interface eth0 /bin/true");
  EXPECT_EQ(nodes.server, launch::NodesOptions::Server::kWhoeverCan);
  EXPECT_EQ(nodes.endpoints.front().host, "fd00::1");
  EXPECT_EQ(nodes.endpoints.front().port, 29);
  EXPECT_EQ(nodes.number, std::nullopt);
  EXPECT_EQ(nodes.join_timeout, std::chrono::seconds(5));
  EXPECT_EQ(nodes.silence, std::chrono::seconds(6));
  EXPECT_EQ(nodes.interface, "eth0");
  const launch::NodesOptions some =
      nodes_of("--nnodes 2:4 --rdzv-endpoint a --rdzv-conf last_call_timeout=2.5 /bin/true");
  EXPECT_EQ(some.min_nodes, 2);
  EXPECT_EQ(some.nodes, 4);
  EXPECT_EQ(some.last_call, std::chrono::milliseconds(2500));
  EXPECT_EQ(nodes_of("--nnodes 2 --rdzv-endpoint a /bin/true").endpoints.front().to_string(),
            "a:29400");
  EXPECT_THAT(nodes_error("--nnodes 2 --rdzv-endpoint a:0 /bin/true"), HasSubstr("port 0"));
  EXPECT_THAT(nodes_error("--nnodes 2 --rdzv-backend c10d /bin/true"),
              HasSubstr("needs --rdzv-endpoint"));
  EXPECT_THAT(nodes_error("--nnodes 2 --rdzv-backend zookeeper /bin/true"),
              HasSubstr("static, c10d and etcd"));
  EXPECT_THAT(nodes_error("--nnodes 2 --rdzv-backend etcd /bin/true"),
              HasSubstr("needs --rdzv-endpoint"));
  EXPECT_THAT(nodes_error("--nnodes 2 --rdzv-backend etcd --rdzv-endpoint a /bin/true"),
              HasSubstr("needs --rdzv-id"));
  const launch::NodesOptions elected = nodes_of(
      "--nnodes 2:3 --rdzv-backend etcd-v2 --rdzv-endpoint a,b:7 --rdzv-id j --rdzv-conf "
      "cacert=/ca,cert=/c,key=/k,user=u,keep_alive_interval=2 /bin/true");
  EXPECT_EQ(elected.server, launch::NodesOptions::Server::kElected);
  ASSERT_EQ(elected.etcd.endpoints.size(), 2u);
  EXPECT_EQ(elected.etcd.endpoints[0].to_string(), "a:2379");
  EXPECT_EQ(elected.etcd.endpoints[1].to_string(), "b:7");
  EXPECT_TRUE(elected.etcd.tls);
  EXPECT_EQ(elected.etcd.ca_cert, "/ca");
  EXPECT_EQ(elected.etcd.key, "/k");
  EXPECT_EQ(elected.etcd.user, "u");
  EXPECT_THAT(
      nodes_error("--nnodes 2 --rdzv-backend etcd --rdzv-endpoint a --rdzv-id j --rdzv-conf "
                  "user=u,password-file=/nowhere /bin/true"),
      HasSubstr("cannot read /nowhere"));
  EXPECT_THAT(nodes_error("--nnodes 2 --rdzv-endpoint a --rdzv-conf x=1 /bin/true"),
              HasSubstr("there is no 'x'"));
  EXPECT_THAT(nodes_error("--nnodes 2 --rdzv-endpoint a --interface ib9 /bin/true"),
              AllOf(HasSubstr("'ib9'"), HasSubstr("eth0 (10.0.0.5)")));
  EXPECT_THAT(error_of("--nnodes 2 --rdzv-endpoint a /bin/true"),
              AllOf(HasSubstr("openssl rand -hex 32"), HasSubstr("LOCKSTEP_SECRET_FILE")));
}

TEST(RunNodes, ByHostList) {
  const RunPlan run = plan("-np 4 -H b:2,10.0.0.5:4 -x A -x B=1 --ssh-command 'rsh' /bin/true");
  EXPECT_EQ(run.options.nproc, 2);
  const auto& nodes = run.options.nodes.value();
  EXPECT_EQ(nodes.nodes, 2);
  EXPECT_EQ(nodes.number, 1);
  ASSERT_EQ(nodes.remotes.size(), 1u);
  EXPECT_EQ(nodes.remotes[0].host, "b");
  EXPECT_EQ(nodes.remotes[0].ranks, 2);
  EXPECT_THAT(nodes.forward, ElementsAre("A"));
  EXPECT_EQ(run.options.env.at("B"), "1") << "on every host";
  EXPECT_THAT(nodes.names, ElementsAre("b", "10.0.0.5"));
  EXPECT_EQ(run.options.program, "/bin/true");
  EXPECT_EQ(plan("-H b,c:3 /bin/true").options.nproc, 0) << "it only starts others";
  EXPECT_FALSE(plan("-H here:3 /bin/true").options.nodes.has_value());
  EXPECT_THAT(plan_run(flags_of("-H b /bin/true"), machine_with({{"LOCKSTEP_SSH", "ssh -p 22"}}))
                  .options.nodes->ssh,
              ElementsAre("ssh", "-p", "22"));
  EXPECT_THAT(error_of("-H here:1,localhost:1 /bin/true"), HasSubstr("both this host"));
  EXPECT_THAT(error_of("-H b --nnodes 2 /bin/true"), HasSubstr("leave --nnodes"));
  EXPECT_EQ(plan("-H b --max-restarts 3 /bin/true").options.max_restarts, 3);
}

TEST(RunPlan, Commands) {
  EXPECT_THAT(command("/bin/echo a"), ElementsAre("/bin/echo", "a"));
  EXPECT_THAT(command("-m json.tool x"),
              ElementsAre("/usr/bin/python3", "-u", "-m", "json.tool", "x"));
  EXPECT_THAT(command("--no-use-env /bin/echo a"),
              ElementsAre("/bin/echo", "--local-rank=${local_rank}", "a"));
  EXPECT_THAT(command("--use-env /bin/echo a"), ElementsAre("/bin/echo", "a"));
  MachineFacts without_python = machine();
  without_python.python = "";
  EXPECT_THROW(plan_run(flags_of("-m json.tool"), without_python), UsageError);
  EXPECT_EQ(message_of<UsageError>([&] { plan_run(flags_of("--threads 0 /bin/true"), machine()); }),
            "--threads is 0; give 1 or more");
}

TEST(RunPlan, TheRestOfTheOptions) {
  const auto options =
      plan(
          "--max-restarts 2 --grace 1.5 --stop-grace 40 -r 0:3 --tee 1 --local-ranks-filter 0 "
          "--prefix --no-pin "
          "--threads 3 "
          "--master-addr h --master-port 5 --rdzv-id id --role r -np 2 --log-dir d /bin/true")
          .options;
  EXPECT_EQ(options.max_restarts, 2);
  EXPECT_EQ(options.grace, std::chrono::milliseconds(1500));
  EXPECT_EQ(options.stop_grace, std::chrono::seconds(40));
  EXPECT_EQ(plan("/bin/true").options.stop_grace, std::chrono::seconds(25));
  EXPECT_THAT(error_of("--stop-grace -1 /bin/true"), HasSubstr("--stop-grace: expected seconds"));
  EXPECT_EQ(launch::redirect_of(options.redirects, 0), launch::Redirect::kBoth);
  EXPECT_EQ(launch::redirect_of(options.redirects, 1), launch::Redirect::kNone);
  EXPECT_EQ(launch::redirect_of(options.tee, 5), launch::Redirect::kStdout);
  EXPECT_THAT(options.show_ranks, ElementsAre(0));
  EXPECT_EQ(options.prefix, launch::LinePrefix::kRank);
  EXPECT_EQ(plan("--tag-output /bin/true").options.prefix, launch::LinePrefix::kRankAndStream);
  EXPECT_FALSE(options.pin);
  EXPECT_EQ(options.threads_per_rank, 3);
  EXPECT_EQ(options.master_addr, "h");
  EXPECT_EQ(options.master_port, 5);
  EXPECT_EQ(options.run_id, "id");
  EXPECT_EQ(options.role, "r");
  EXPECT_EQ(options.log_dir, "d");
  EXPECT_EQ(plan("--numa-binding node /bin/true").notes.size(), 1u);
}

TEST(Usage, SuggestsOnlyWhatIsClose) {
  const Words names = {"train", "eval", "predict"};
  EXPECT_EQ(suggestion("trian", names), " (did you mean train?)");
  EXPECT_EQ(suggestion("evla", names), " (did you mean eval?)");
  EXPECT_EQ(suggestion("frobnicate", names), "");
}

TEST(Commands, HelpListsEachWithOneLine) {
  for (const Command& command : commands()) {
    EXPECT_THAT(help_text(), HasSubstr(std::string("\n  ") + command.name + " "));
  }
  EXPECT_THAT(run_help(),
              AllOf(HasSubstr("--nproc-per-node"), HasSubstr("-H"), HasSubstr("--grace")));
}

TEST(Commands, OtherProgramsLieInLibexec) {
  EXPECT_EQ(program_path("/opt/bin/lockstep", "lockstep-tools"),
            "/opt/libexec/lockstep/lockstep-tools");
  EXPECT_THAT(how_to_build("/opt/bin/lockstep", "lockstep-tools"),
              HasSubstr("target lockstep-tools"));
  const TestDirectory build;
  build.write("CMakeCache.txt", "");
  EXPECT_EQ(how_to_build(build / "bin" / "lockstep", "lockstep-tools"),
            "build it: cmake --build " + build.path().string() + " --target lockstep-tools");
}

TEST(RunPlan, RolesOfTheirOwn) {
  const auto options = plan("--role ps=1,restarts=3,service --role trainer=4 /bin/true").options;
  EXPECT_EQ(options.nproc, 5);
  EXPECT_THAT(options.roles, ElementsAre(launch::Role{.name = "ps", .restarts = 3, .service = true},
                                         launch::Role{.name = "trainer", .ranks = 4}));
  EXPECT_EQ(plan("--role=ps=1 --role=trainer=4 -np 5 /bin/true").options.nproc, 5);
  EXPECT_EQ(plan("--role ps=1 --max-restarts 2 /bin/true").options.max_restarts, 2);
  // A name alone has torchrun's meaning.
  EXPECT_EQ(plan("--role a --role b -np 2 /bin/true").options.role, "b");
  EXPECT_TRUE(plan("--role b -np 2 /bin/true").options.roles.empty());
  const auto hosts = plan("-H localhost:2,b:4 --role ps=1,restarts=1 --role trainer=3 /bin/true");
  EXPECT_EQ(hosts.options.nproc, 2);
  EXPECT_EQ(hosts.options.nodes->remotes.front().ranks, 2) << "in order, as many as there are";
  const std::pair<const char*, const char*> wrong[] = {
      {"--role ps=0", "--role: role 'ps=0': expected a number of ranks"},
      {"--role =1", "--role: role '=1': expected NAME=COUNT"},
      {"--role ps=1 --role ps=2", "--role: role 'ps' is given twice"},
      {"--role ps=1,service", "--role: every role is a service"},
      {"--role ps,restarts=1", "after ps="},
      {"--role ps=1 --role trainer", "give all roles a number of ranks"},
      {"--role ps=1 --role trainer=4 -np 4",
       "--nproc-per-node=4 contradicts the roles, which have 5 ranks (ps=0-0,trainer=1-4)"},
      {"--role ps=1 --nnodes 2 --node-rank 0 --master-addr h", "use -H HOST:SLOTS"},
      {"--role ps=9 -H localhost:2,b:4", "9"},
      {"--role ps=1 --backend mpi", "--role NAME=COUNT does not go with --backend mpi"}};
  for (const auto& [flags, expected] : wrong)
    EXPECT_THAT(error_of(std::string(flags) + " /bin/true"), HasSubstr(expected)) << flags;
}

TEST(RunPlan, BackendMpiIsLeftToMpirun) {
  const RunPlan mpi = plan("--backend mpi -np 2 --prefix /bin/echo hello");
  EXPECT_TRUE(mpi.by_mpirun);
  EXPECT_EQ(mpi.options.env.at("LOCKSTEP_BACKEND"), "mpi");
  const launch::MpirunJob job = mpi_job(mpi);
  EXPECT_EQ(job.nproc, 2);
  EXPECT_TRUE(job.tag_lines);
  EXPECT_THAT(job.command, ElementsAre("/bin/echo", "hello"));
  EXPECT_EQ(job.env.at("LOCKSTEP_BACKEND"), "mpi");
  const RunPlan gloo = plan("--backend gloo -np 2 /bin/echo");
  EXPECT_FALSE(gloo.by_mpirun);
  EXPECT_EQ(gloo.options.env.at("LOCKSTEP_BACKEND"), "gloo");
  EXPECT_THAT(error_of("--backend mpi --max-restarts 2 /bin/echo"), HasSubstr("--max-restarts"));
  EXPECT_THAT(error_of("--backend mpi -H a:1,b:1 /bin/echo"), HasSubstr("mpirun -n N -H HOSTS"));
}

}  // namespace cli_test
}  // namespace lockstep::inline v0::cli
