from click import Group

main = Group()
