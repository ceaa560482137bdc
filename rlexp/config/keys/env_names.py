"""The environments that Gymnasium and the Arcade Learning Environment register: names only, neither is imported."""

from __future__ import annotations

_GYMNASIUM_IDS = """
Acrobot-v1 Ant-v4 Ant-v5 BipedalWalker-v3 BipedalWalkerHardcore-v3 Blackjack-v1 CarRacing-v3 CartPole-v0
CartPole-v1 CliffWalking-v1 CliffWalkingSlippery-v1 FrozenLake-v1 FrozenLake8x8-v1 HalfCheetah-v4
HalfCheetah-v5 Hopper-v4 Hopper-v5 Humanoid-v4 Humanoid-v5 HumanoidStandup-v4 HumanoidStandup-v5
InvertedDoublePendulum-v4 InvertedDoublePendulum-v5 InvertedPendulum-v4 InvertedPendulum-v5 LunarLander-v3
LunarLanderContinuous-v3 MountainCar-v0 MountainCarContinuous-v0 Pendulum-v1 Pusher-v4 Pusher-v5 Reacher-v4
Reacher-v5 Swimmer-v4 Swimmer-v5 Taxi-v4 Walker2d-v4 Walker2d-v5 phys2d/CartPole-v0 phys2d/CartPole-v1
phys2d/Pendulum-v0 tabular/Blackjack-v0 tabular/CliffWalking-v0 GymV21Environment-v0 GymV26Environment-v0
"""
GYMNASIUM_IDS = frozenset(_GYMNASIUM_IDS.split())

LATER_VERSIONS = {
    "Acrobot-v0": "Acrobot-v1",
    "BipedalWalker-v2": "BipedalWalker-v3",
    "BipedalWalkerHardcore-v2": "BipedalWalkerHardcore-v3",
    "Blackjack-v0": "Blackjack-v1",
    "CarRacing-v0": "CarRacing-v3",
    "CarRacing-v1": "CarRacing-v3",
    "CarRacing-v2": "CarRacing-v3",
    "CliffWalking-v0": "CliffWalking-v1",
    "FrozenLake-v0": "FrozenLake-v1",
    "FrozenLake8x8-v0": "FrozenLake8x8-v1",
    "LunarLander-v1": "LunarLander-v3",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "Pendulum-v0": "Pendulum-v1",
    "Taxi-v1": "Taxi-v4",
    "Taxi-v2": "Taxi-v4",
    "Taxi-v3": "Taxi-v4",
}
"""Ids that Gymnasium has no more, and those that took their place."""

_MUJOCO_TASKS = """
Ant HalfCheetah Hopper Humanoid HumanoidStandup InvertedDoublePendulum InvertedPendulum Pusher Reacher Swimmer
Walker2d
"""
MUJOCO_TASKS = frozenset(_MUJOCO_TASKS.split())
"""Their versions 1 to 3 need the library mujoco-py; version 4 is the first without it."""

BOX2D_TASKS = frozenset({"BipedalWalker", "BipedalWalkerHardcore", "CarRacing", "LunarLander", "LunarLanderContinuous"})
CONTINUOUS_IDS = frozenset(
    {
        *("Pendulum-v1", "MountainCarContinuous-v0", "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"),
        *("LunarLanderContinuous-v3", "phys2d/Pendulum-v0"),
    }
)
"""Envs, beside MuJoCo's, whose actions are continuous."""

_ATARI_GAMES = """
Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon BankHeist BasicMath
BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino Centipede ChopperCommand
CrazyClimber Crossbow Darkchambers Defender DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro
Entombed Et FishingDerby FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse
Hero HumanCannonball IceHockey Jamesbond JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid
Krull KungFuMaster LaserGates LostLuggage MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame
Othello Pacman Phoenix Pitfall Pitfall2 Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest
SirLancelot Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris TicTacToe3D
TimePilot Trondead Turmoil Tutankham UpNDown Venture VideoCheckers VideoChess VideoCube VideoPinball
WizardOfWor WordZapper YarsRevenge Zaxxon
"""
ATARI_GAMES = frozenset(_ATARI_GAMES.split())
