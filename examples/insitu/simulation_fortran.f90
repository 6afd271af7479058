! simulation.cpp in Fortran: the same samples, for the same trainer (docs/in-situ.md).
!
!   insitu/simulation_fortran RING STEPS PAUSE_MS SECONDS
program simulation
  use, intrinsic :: iso_fortran_env, only: real32, real64, error_unit
  use lockstep_insitu
  implicit none
  integer, parameter :: points = 64, stride = 16
  type(insitu_producer) :: ring
  real(real32), target :: before(points), after(points)
  real(real64) :: seconds
  character(len=64) :: name
  character(len=512) :: message
  integer :: steps, pause_ms, step, i, stat, placed_steps
  logical :: placed, drained

  interface
    ! Of the C library, since Fortran has no pause below a second.
    function usleep(microseconds) bind(c)
      use, intrinsic :: iso_c_binding
      integer(c_int), value :: microseconds
      integer(c_int) :: usleep
    end function
  end interface

  call get_command_argument(1, name)
  steps = whole_argument(2)
  pause_ms = whole_argument(3)
  seconds = real(whole_argument(4), real64)

  call insitu_produce(ring, name, [insitu_field('before', INSITU_FLOAT32, [points]), &
                                   insitu_field('after', INSITU_FLOAT32, [points])], &
                      10.0_real64, stat, message, slots=64, on_full=INSITU_DROP_OLDEST)
  if (stat /= 0) call fail()
  placed_steps = 0
  do step = 0, steps - 1
    if (mod(step, 8) == 0) call begin_wave(step/8, after)
    before = after
    do i = 1, stride
      call advance(after)
    end do
    call insitu_push(ring, [c_loc(before), c_loc(after)], 0.1_real64, placed, stat, message)
    if (stat /= 0) call fail()
    if (placed) placed_steps = placed_steps + 1
    stat = usleep(1000*pause_ms)
  end do
  call insitu_close(ring, seconds, drained, stat, message)
  if (stat /= 0) call fail()
  call insitu_free(ring)
  print '(a,i0,a,i0,a,i0,a)', 'simulation: ', steps, ' steps, ', placed_steps, ' samples produced, ', &
    steps - placed_steps, ' not placed'

contains

  integer function whole_argument(number)
    integer, intent(in) :: number
    character(len=32) :: text
    call get_command_argument(number, text)
    read (text, *, iostat=stat) whole_argument
    if (stat /= 0) then
      write (error_unit, '(a)') 'usage: simulation_fortran RING STEPS PAUSE_MS SECONDS'
      stop 2
    end if
  end function

  subroutine fail()
    write (error_unit, '(a)') 'simulation: '//trim(message)
    stop 1
  end subroutine

  subroutine begin_wave(number, u)
    integer, intent(in) :: number
    real(real32), intent(out) :: u(points)
    real(real64), parameter :: pi = acos(-1.0_real64)
    integer :: k
    u = [(real(sin(2*pi*(1 + mod(number, 4))*k/points + 0.7_real64*number), real32), k=0, points - 1)]
  end subroutine

  ! Advection with a little diffusion, upwind, on a periodic line.
  subroutine advance(u)
    real(real32), intent(inout) :: u(points)
    real(real32) :: left(points), right(points)
    left = cshift(u, -1)
    right = cshift(u, 1)
    u = u - 0.25*(u - left) + 0.02*(left - 2*u + right)
  end subroutine

end program simulation
