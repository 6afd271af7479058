// Draws what each collective does, as docs/figures has it: runs it on four ranks, records what
// every rank had before and afterwards, and writes one SVG a collective.
//   collective_figures FOLDER
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/aside_file.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kRanks = 4;
constexpr int kCell = 52, kRow = 30, kGap = 8, kTop = 62, kLeft = 16, kBetween = 86;
constexpr std::array<const char*, kRanks> kColours = {"#8ecae6", "#ffd166", "#95d5b2", "#f4a6c0"};

// Rank r's part i. A bit of its own, so that a sum tells what was added.
float value_of(int rank, int part) {
  return static_cast<float>(uint32_t{1} << (rank + kRanks * part));
}

at::Tensor own(int rank, int parts = kRanks) {
  at::Tensor tensor = at::zeros({parts});
  for (int i = 0; i < parts; ++i) tensor.data_ptr<float>()[i] = value_of(rank, i);
  return tensor;
}

using Cells = std::vector<float>;

Cells cells_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel()};
}

struct Recorded {
  std::array<Cells, kRanks> before, after;
};

// What a rank gives and gets.
struct Seen {
  at::Tensor given, got;
};

struct Collective {
  const char* name;
  const char* call;
  std::function<Seen(Communicator&)> run;
};

const std::vector<Collective>& collectives() {
  static const std::vector<Collective> kAll = {
      {"broadcast", "comm.broadcast(t, 0)",
       [](Communicator& comm) {
         Seen seen{own(comm.rank()), own(comm.rank())};
         comm.broadcast(seen.got, 0);
         return seen;
       }},
      {"scatter", "comm.scatter(out, in, 0)",
       [](Communicator& comm) {
         Seen seen;
         if (comm.rank() == 0) seen.given = own(0);
         seen.got = at::zeros({1});
         comm.scatter(seen.got, seen.given, 0);
         return seen;
       }},
      {"gather", "comm.gather(t, 0)",
       [](Communicator& comm) {
         Seen seen{own(comm.rank(), 1), {}};
         seen.got = comm.gather(seen.given, 0);
         return seen;
       }},
      {"all_gather", "comm.all_gather(t)",
       [](Communicator& comm) {
         Seen seen{own(comm.rank(), 1), {}};
         seen.got = comm.all_gather(seen.given);
         return seen;
       }},
      {"reduce", "comm.reduce(t, 0)",
       [](Communicator& comm) {
         Seen seen{own(comm.rank()), own(comm.rank())};
         comm.reduce(seen.got, 0);
         return seen;
       }},
      {"all_reduce", "comm.all_reduce(t)",
       [](Communicator& comm) {
         Seen seen{own(comm.rank()), own(comm.rank())};
         comm.all_reduce(seen.got);
         return seen;
       }},
      {"reduce_scatter", "comm.reduce_scatter(t)",
       [](Communicator& comm) {
         Seen seen{own(comm.rank()), {}};
         seen.got = comm.reduce_scatter(seen.given);
         return seen;
       }},
      {"all_to_all", "comm.all_to_all(t)",
       [](Communicator& comm) {
         Seen seen{own(comm.rank()), {}};
         seen.got = comm.all_to_all(seen.given);
         return seen;
       }},
  };
  return kAll;
}

Recorded record(const Collective& collective) {
  Recorded recorded;
  testing::run_threads(kRanks, [&](Communicator& comm) {
    const Seen seen = collective.run(comm);
    recorded.before[static_cast<size_t>(comm.rank())] = cells_of(seen.given);
    recorded.after[static_cast<size_t>(comm.rank())] = cells_of(seen.got);
  });
  return recorded;
}

// What a value was added up from.
struct Terms {
  std::vector<int> ranks;
  std::string text;
};

Terms terms_of(float value) {
  Terms terms;
  const auto bits = static_cast<uint32_t>(value);
  int part = -1;
  bool one_part = true;
  for (int i = 0; i < kRanks * kRanks; ++i) {
    if ((bits >> i & 1U) == 0) continue;
    terms.ranks.push_back(i % kRanks);
    one_part = one_part && (part < 0 || part == i / kRanks);
    part = i / kRanks;
    terms.text += (terms.text.empty() ? "" : "+") +
                  std::string(1, static_cast<char>('a' + i % kRanks)) + std::to_string(part);
  }
  if (one_part && std::popcount(bits) == kRanks) terms.text = "\u03a3" + std::to_string(part);
  return terms;
}

std::string text_at(double x, double y, const std::string& text, const std::string& more = "") {
  return "<text x=\"" + std::to_string(static_cast<int>(x)) + "\" y=\"" +
         std::to_string(static_cast<int>(y)) + "\" " + more + ">" + text + "</text>\n";
}

std::string rect(int x, int y, int width, int height, const std::string& more) {
  return "<rect x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
         std::to_string(width) + "\" height=\"" + std::to_string(height) + "\" " + more + "/>\n";
}

// One tensor: a stripe of colour for every rank that a value comes from.
std::string column(int x, int rank, const Cells& cells) {
  std::string svg =
      text_at(x + kCell / 2.0, kTop - 8, "rank " + std::to_string(rank), "class=\"s\"");
  for (int i = 0; i < kRanks; ++i) {
    const int y = kTop + i * kRow;
    if (i >= static_cast<int>(cells.size())) {
      svg += rect(x, y, kCell, kRow, "fill=\"none\" stroke=\"#ccc\" stroke-dasharray=\"3 3\"");
      continue;
    }
    const Terms terms = terms_of(cells[static_cast<size_t>(i)]);
    const int stripes = static_cast<int>(terms.ranks.size());
    for (int s = 0; s < stripes; ++s) {
      const int from = kCell * s / stripes, to = kCell * (s + 1) / stripes;
      svg += rect(x + from, y, to - from, kRow,
                  std::string("fill=\"") +
                      kColours[static_cast<size_t>(terms.ranks[static_cast<size_t>(s)])] + "\"");
    }
    svg += rect(x, y, kCell, kRow, "fill=\"none\" stroke=\"#555\"");
    svg += text_at(x + kCell / 2.0, y + kRow / 2.0 + 5, terms.text, "class=\"m\"");
  }
  return svg;
}

std::string draw(const Collective& collective, const Recorded& recorded) {
  const int grid = kRanks * kCell + (kRanks - 1) * kGap;
  const int width = 2 * kLeft + 2 * grid + kBetween, bottom = kTop + kRanks * kRow;
  const int height = bottom + 34;
  const int second = kLeft + grid + kBetween, middle = kTop + kRanks * kRow / 2;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " +
                    std::to_string(width) + " " + std::to_string(height) + "\" width=\"" +
                    std::to_string(width) + "\" height=\"" + std::to_string(height) +
                    "\" role=\"img\">\n<title>" + collective.name +
                    "</title>\n<style>text{font-family:sans-serif;fill:#222;text-anchor:middle}"
                    ".t{font-size:17px;font-family:monospace;font-weight:bold}.s{font-size:12px}"
                    ".m{font-size:14px;font-family:monospace}</style>\n";
  svg += rect(0, 0, width, height, "fill=\"#fff\" rx=\"8\"");
  svg += text_at(width / 2.0, 26, collective.call, "class=\"t\"");
  bool sums = false;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    svg += column(kLeft + rank * (kCell + kGap), rank, recorded.before[r]);
    svg += column(second + rank * (kCell + kGap), rank, recorded.after[r]);
    for (const float value : recorded.after[r]) sums = sums || terms_of(value).ranks.size() > 1;
  }
  const int from = kLeft + grid + 20, to = second - 20;
  svg += "<path d=\"M" + std::to_string(from) + " " + std::to_string(middle) + "H" +
         std::to_string(to) +
         "m-9 -7l9 7l-9 7\" fill=\"none\" stroke=\"#555\" stroke-width=\"2\"/>\n";
  svg += text_at(kLeft + grid / 2.0, bottom + 20, "before", "class=\"s\"");
  svg += text_at(second + grid / 2.0, bottom + 20, "after", "class=\"s\"");
  if (sums) svg += text_at(width / 2.0, bottom + 20, "\u03a3i = ai+bi+ci+di", "class=\"s\"");
  return svg + "</svg>\n";
}

}  // namespace
}  // namespace lockstep::inline v0

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: collective_figures FOLDER\n", stderr);
    return 2;
  }
  try {
    for (const lockstep::Collective& collective : lockstep::collectives()) {
      const std::string file = std::string(argv[1]) + "/" + collective.name + ".svg";
      lockstep::write_file_aside(file, lockstep::draw(collective, lockstep::record(collective)));
      std::printf("%s\n", file.c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collective_figures: %s\n", error.what());
    return 1;
  }
}
