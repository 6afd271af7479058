// Every process says which one it is. Started by hand it is alone: process 0.
#include <lockstep/comm/init.h>

#include <cstdio>

int main() {
  const auto comm = lockstep::init();
  std::printf("Hello world from process %d\n", comm.rank());
}
