! A solver that trains a net while it runs. Each rank has some cells of a 1-D domain, on which a
! quantity moves with constant speed (upwind scheme, periodic). At every time step the ranks train a
! net together, which learns a cell's next value from the cell and its two neighbours.
!
!   mpirun -n 2 advection [FOLDER]     or lockstep run, srun, torchrun, or alone
!
! The losses are those of one rank, whatever the number of ranks.
program advection
  use, intrinsic :: iso_fortran_env, only: real64
  use lockstep
  implicit none
  integer, parameter :: cells = 200, steps = 600
  real(real64), parameter :: courant = 0.4_real64, pi = acos(-1.0_real64)
  type(lockstep_comm) :: comm
  type(lockstep_model) :: net
  real(real64), allocatable :: u(:), stencil(:, :), next(:, :), guess(:, :)
  real(real64) :: loss, first
  integer :: rank, ranks, from, n, i, step
  character(4096) :: folder

  call lockstep_init(comm)
  call lockstep_comm_rank(comm, rank)
  call lockstep_comm_size(comm, ranks)

  ! This rank's cells are from + 1 to from + n of all; u(0) and u(n + 1) are its neighbours'.
  from = cells*rank/ranks
  n = cells*(rank + 1)/ranks - from
  allocate (u(0:n + 1), stencil(3, n), next(1, n), guess(1, n))
  do i = 1, n
    u(i) = sin(2*pi*(from + i)/cells) + exp(-((from + i - 50)/12.0_real64)**2)
  end do

  call lockstep_model_mlp([3, 24, 1], net, activation="tanh", seed=7)
  call lockstep_model_start_training(net, comm, loss="mse", optimizer="adam", &
    learning_rate=0.01_real64)

  do step = 1, steps
    call exchange_borders()
    do i = 1, n
      stencil(:, i) = u(i - 1:i + 1)
      next(1, i) = u(i) - courant*(u(i) - u(i - 1))
    end do
    call lockstep_model_train_step(net, stencil, next, loss)
    if (step == 1) first = loss
    if (rank == 0 .and. (step == 1 .or. modulo(step, 50) == 0)) &
      print "(a,i5,a,es22.14)", "step", step, "  loss", loss
    u(1:n) = next(1, :)
  end do

  ! The net in the solver's place, for one step.
  call exchange_borders()
  do i = 1, n
    stencil(:, i) = u(i - 1:i + 1)
    next(1, i) = u(i) - courant*(u(i) - u(i - 1))
  end do
  call lockstep_model_forward(net, stencil, guess)
  loss = maxval(abs(guess - next))
  call lockstep_all_reduce(comm, loss, LOCKSTEP_MAX)
  if (rank == 0) print "(a,es10.3)", "the net's largest error in a step:", loss

  call get_command_argument(1, folder)
  if (folder /= "") then
    call lockstep_model_save(net, trim(folder)//"/checkpoint")
    call lockstep_model_save_script(net, trim(folder)//"/net.pt")
  end if
  call lockstep_model_free(net)
  call lockstep_comm_free(comm)

contains

  ! Each rank sends its first and last cell to its neighbours on the circle.
  subroutine exchange_borders()
    type(lockstep_work) :: work(4)
    integer :: left, right, k
    left = modulo(rank - 1, ranks)
    right = modulo(rank + 1, ranks)
    call lockstep_irecv(comm, u(0), left, 1, work(1))
    call lockstep_irecv(comm, u(n + 1), right, 2, work(2))
    call lockstep_isend(comm, u(n), right, 1, work(3))
    call lockstep_isend(comm, u(1), left, 2, work(4))
    do k = 1, 4
      call lockstep_work_wait(work(k))
      call lockstep_work_free(work(k))
    end do
  end subroutine

end program advection
