// Scatters an array, sums and squares it part by part, and collects the results: what the ranks
// have is what mpi4py and numpy would print.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <lockstep/comm/init.h>
#include <lockstep/core/log.h>
#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

namespace {

// One write: the lines of one print stay together, whatever the other ranks print.
void print(const std::string& text) {
  lockstep::write_all(STDOUT_FILENO, text + "\n");
}

// As numpy prints it: columns as wide as the widest number of all rows, aligned to the right.
std::string to_text(const std::vector<at::Tensor>& rows) {
  std::vector<std::vector<std::string>> numbers;
  size_t width = 0;
  for (const at::Tensor& row : rows) {
    auto& texts = numbers.emplace_back();
    for (int64_t i = 0; i < row.numel(); ++i) {
      texts.push_back(std::to_string(row[i].item<int64_t>()));
      width = std::max(width, texts.back().size());
    }
  }
  std::ostringstream out;
  for (const auto& texts : numbers) {
    out << (&texts == &numbers.front() ? "[" : "\n [");
    for (const auto& text : texts) {
      out << (&text == &texts.front() ? "" : " ") << std::setw(static_cast<int>(width)) << text;
    }
    out << "]";
  }
  return out.str();
}

}  // namespace

int main() {
  auto comm = lockstep::init();
  const int rank = comm.rank(), size = comm.size();

  const auto array = at::arange(8);  // only rank 0's is sent
  if (rank == 0) {
    print("当前的world_size为： " + std::to_string(size));
    print("原始数据为：\n " + to_text({array}));
  }

  // Parts may be uneven: of 3 ranks the first two get 3 numbers, the last one 2.
  std::vector<int64_t> counts;
  for (int r = 0; r < size; ++r)
    counts.push_back(array.numel() / size + (r < array.numel() % size));
  const auto part = at::empty({counts[static_cast<size_t>(rank)]}, array.options());
  comm.scatterv(part, array, counts, 0);

  // In rank order: a rank prints once all before it have.
  for (int turn = 0; turn < size; ++turn) {
    if (turn == rank)
      print("rank-" + std::to_string(rank) + " 拿到的数据为：\n " + to_text({part}));
    comm.barrier();
  }

  const auto sum = part.sum();
  comm.all_reduce(sum);
  const auto squares = comm.all_gatherv(part.square());

  if (rank == std::min(1, size - 1)) {
    print("元素和为： " + std::to_string(sum.item<int64_t>()));
    print("按元素平方后的结果为：\n [" + to_text(squares.split_with_sizes(counts)) + "]");
  }
}
