#include "lockstep/parallel/context/context_layout.h"

#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

void check_part(int64_t length, int64_t part, int64_t parts) {
  if (length >= 0 && part >= 0 && part < parts) return;
  throw InvalidArgument("context layout: a sequence of " + std::to_string(length) +
                        " tokens, part " + std::to_string(part) + " of " + std::to_string(parts) +
                        "; give 0 tokens or more, and a part from 0 on");
}

}  // namespace

ContextChunk context_chunk(int64_t length, int64_t chunk, int64_t parts) {
  if (parts < 1 || length < 0 || chunk < 0 || chunk >= 2 * parts)
    throw InvalidArgument("context layout: chunk " + std::to_string(chunk) + " of " +
                          std::to_string(length) + " tokens among " + std::to_string(parts) +
                          " parts; there are two chunks a part");
  return {length * chunk / (2 * parts), length * (chunk + 1) / (2 * parts)};
}

int64_t context_count(int64_t length, int64_t part, int64_t parts) {
  check_part(length, part, parts);
  return context_chunk(length, part, parts).size() +
         context_chunk(length, 2 * parts - 1 - part, parts).size();
}

int64_t context_count(const std::vector<int64_t>& lengths, int64_t part, int64_t parts) {
  int64_t count = 0;
  for (const int64_t length : lengths) count += context_count(length, part, parts);
  return count;
}

std::vector<int64_t> context_rows(const std::vector<int64_t>& lengths, int64_t part,
                                  int64_t parts) {
  std::vector<int64_t> rows;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    check_part(length, part, parts);
    for (const int64_t index : {part, 2 * parts - 1 - part}) {
      const ContextChunk chunk = context_chunk(length, index, parts);
      for (int64_t i = chunk.begin; i < chunk.end; ++i) rows.push_back(begin + i);
    }
    begin += length;
  }
  return rows;
}

std::vector<ContextRun> context_runs(const std::vector<int64_t>& lengths) {
  std::vector<ContextRun> runs;
  for (const int64_t length : lengths) {
    if (!runs.empty() && runs.back().length == length)
      ++runs.back().sequences;
    else
      runs.push_back({1, length});
  }
  return runs;
}

ContextBlock context_block(int64_t length, int64_t part, int64_t of_part, int64_t parts) {
  const int64_t own = context_count(length, part, parts),
                theirs = context_count(length, of_part, parts);
  if (part == of_part) return {0, own, 0, own, true};
  const int64_t own_early = context_chunk(length, part, parts).size(),
                their_early = context_chunk(length, of_part, parts).size();
  // Of an earlier part both chunks see the early one: its late one lies behind them. Of a later part the late
  // chunk sees both.
  if (of_part < part) return {0, own, 0, their_early, false};
  return {own_early, own - own_early, 0, theirs, false};
}

}  // namespace lockstep::inline v0
