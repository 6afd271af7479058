// Open MPI's side of bench/small_all_reduce.py; see small_all_reduce.cpp.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double mean_us(float* data, long count, int calls, int rank, int size) {
  double spent = 0;
  for (int i = -calls / 10; i < calls; ++i) {
    const float value = (float)(i % 7 + rank);
    for (long k = 0; k < count; ++k) data[k] = value;
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now_us();
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double end = now_us();
    if (i >= 0) spent += end - start;
    const float expected = (float)((i % 7) * size + size / 2);
    if (size == 2 && (data[0] != expected || data[count - 1] != expected)) {
      fprintf(stderr, "wrong sum in call %d\n", i);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  double mean = spent / calls;
  MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return mean / size;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 1; i + 1 < argc; i += 2) {
    const long bytes = atol(argv[i]);
    float* data = NULL;
    if (posix_memalign((void**)&data, 64, (size_t)bytes) != 0) return 1;
    const double mean = mean_us(data, bytes / 4, atoi(argv[i + 1]), rank, size);
    free(data);
    if (rank == 0) printf("mpi %ld %.4f\n", bytes, mean);
  }
  MPI_Finalize();
  return 0;
}
